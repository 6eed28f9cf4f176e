"""`hami certs patch`: the API server trusts our webhook's certificate.

The chart runs it after it has installed or upgraded.
"""

from __future__ import annotations

from collections.abc import Sequence

from hami.cli import api_jobs, parser
from hami.installation import webhook_trust
from hami.installation.job import Job


def main(arguments: Sequence[str], *, prog: str) -> int:
    asked = _parser(prog).parse_args(arguments)

    async def work(job: Job) -> None:
        await webhook_trust.set_from_secret(
            job, namespace=asked.namespace, secret=asked.tls_secret, webhook=asked.webhook
        )

    api_jobs.run(asked, work, prog=prog)
    return 0


def _parser(prog: str) -> parser.Parser:
    made = parser.Parser(
        prog=prog,
        description="Write the authorities of a TLS Secret (its ca.crt) into the caBundle of\n"
        "every webhook of a MutatingWebhookConfiguration.",
        epilog="Exit code 0: they are there; 1: they could not be written; 2: wrong usage.",
    )
    api_jobs.add_flags(made)
    made.add_argument("--tls-secret", required=True, metavar="NAME", help="whose ca.crt to take")
    made.add_argument(
        "--webhook", required=True, metavar="NAME", help="MutatingWebhookConfiguration to change"
    )
    return made
