"""`hami cleanup`: after an uninstall, take away what Helm does not know of.

The chart runs it after it has been uninstalled; a person may run it again.
"""

from __future__ import annotations

from collections.abc import Sequence

from hami.cli import api_jobs, errors, parser
from hami.installation import leftovers
from hami.installation.job import Job
from hami.vendors import table
from hami.wire import annotation_keys, comma_list


def main(arguments: Sequence[str], *, prog: str) -> int:
    asked = _parser(prog).parse_args(arguments)

    async def work(job: Job) -> None:
        failures = await leftovers.remove(
            job,
            namespace=asked.namespace,
            secrets=comma_list.tokens(asked.secrets),
            lease=asked.lease,
            marks=_marks(),
        )
        if failures:
            raise errors.CommandError(
                f"not all could be removed; see to it and run this again: {'; '.join(failures)}"
            )

    api_jobs.run(asked, work, prog=prog)
    return 0


def _marks() -> tuple[str, ...]:
    """Return the annotations of nodes that only our own processes write."""
    (keys,) = (vendor.annotations for vendor in table.built_in() if vendor.section == "nvidia")
    agents = (keys.register, keys.pair_scores, keys.binding, keys.lock_reason, keys.shares)
    return (annotation_keys.WAKE_UP, *agents)


def _parser(prog: str) -> parser.Parser:
    made = parser.Parser(
        prog=prog,
        description="Remove what an installation leaves behind: Secrets that `hami certs create`\n"
        "made, the lease, and the annotations by which nodes offer their cards.",
        epilog="Exit code 0: nothing is left; 1: something is; 2: wrong usage.",
    )
    api_jobs.add_flags(made)
    made.add_argument(
        "--secrets",
        default="",
        metavar="NAMES",
        help="with commas; only those hami made are removed",
    )
    made.add_argument("--lease", default="", metavar="NAME", help="as --leader-elect-resource-name")
    return made
