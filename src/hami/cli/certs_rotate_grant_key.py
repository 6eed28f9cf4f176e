"""`hami certs rotate-grant-key`: another key signs grants from now on.

A person runs it, when a key may have leaked or a rule asks for it.
"""

from __future__ import annotations

from collections.abc import Sequence

from hami.cli import api_jobs, errors, parser
from hami.installation import grant_secret
from hami.installation.job import Job
from hami.wire import go_values


def main(arguments: Sequence[str], *, prog: str) -> int:
    asked = _parser(prog).parse_args(arguments)
    wait = go_values.parse_duration(asked.wait, what="--wait")
    if wait < 0:
        raise errors.usage("--wait", asked.wait, "is negative", "write for example 3m")

    async def work(job: Job) -> None:
        await grant_secret.rotate(
            job, namespace=asked.namespace, name=asked.grant_key_secret, wait=wait
        )

    api_jobs.run(asked, work, prog=prog)
    return 0


def _parser(prog: str) -> parser.Parser:
    made = parser.Parser(
        prog=prog,
        description="Sign grants of cards with a new key. First every node learns it, then the\n"
        "scheduler uses it; what the old key signed stays good until the next rotation.",
        epilog="Exit code 0: done; 1: not done, nothing is broken, run it again; 2: wrong usage.",
    )
    api_jobs.add_flags(made)
    made.add_argument("--grant-key-secret", required=True, metavar="NAME", help="with the keys")
    made.add_argument(
        "--wait",
        default="3m",
        metavar="TIME",
        help="how long kubelets may take to bring a changed Secret to all pods (default 3m)",
    )
    return made
