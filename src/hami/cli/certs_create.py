"""`hami certs create`: the Secrets that an installation needs, made or renewed as needed.

The chart runs it before it installs or upgrades; a person may run it at any time.
"""

from __future__ import annotations

import argparse
import datetime as dt
from collections.abc import Sequence

from hami.cli import api_jobs, errors, parser
from hami.installation import grant_secret, host_names
from hami.installation.job import Job
from hami.wire import go_values

_HOUR_S = 3600
_SHORTEST, _LONGEST = _HOUR_S, 100 * 365 * 24 * _HOUR_S


def main(arguments: Sequence[str], *, prog: str) -> int:
    asked = _parser(prog).parse_args(arguments)
    _check(asked)
    hosts = host_names.parse(asked.hosts, what="--hosts") if asked.tls_secret else ()
    lifetime = _lifetime(asked.lifetime)

    async def work(job: Job) -> None:
        if asked.tls_secret:
            await _certificate(job, asked, hosts, lifetime)
        if asked.grant_key_secret:
            await grant_secret.ensure(job, namespace=asked.namespace, name=asked.grant_key_secret)

    api_jobs.run(asked, work, prog=prog)
    return 0


async def _certificate(
    job: Job, asked: argparse.Namespace, hosts: Sequence[str], lifetime: dt.timedelta
) -> None:
    try:
        # Only here, because it loads cryptography, which is an extra.
        from hami.installation import tls_secret  # noqa: PLC0415 - see above
    except ModuleNotFoundError as error:
        raise errors.UsageError(
            f"--tls-secret: certificates need the Python package {error.name}, which is not "
            "installed; install 'hami[certs]', or have cert-manager make the Secret"
        ) from error
    wanted = tls_secret.Wanted(
        asked.namespace, asked.tls_secret, hosts, lifetime, webhook=asked.webhook
    )
    await tls_secret.ensure(job, wanted)


def _check(asked: argparse.Namespace) -> None:
    if not asked.tls_secret and not asked.grant_key_secret:
        raise errors.UsageError(
            "nothing to make; add --tls-secret=NAME --hosts=HOSTS, --grant-key-secret=NAME or both"
        )
    if asked.tls_secret and not asked.hosts:
        raise errors.UsageError(
            "--tls-secret needs the hosts of the certificate; "
            "add for example --hosts=hami-webhook.kube-system.svc,127.0.0.1"
        )
    for flag in ("hosts", "webhook"):
        if getattr(asked, flag) and not asked.tls_secret:
            raise errors.UsageError(f"--{flag} is about a certificate; add --tls-secret=NAME")


def _lifetime(text: str) -> dt.timedelta:
    seconds = go_values.parse_duration(text, what="--lifetime")
    if not _SHORTEST <= seconds <= _LONGEST:
        rule = f"must be from 1h to {_LONGEST // _HOUR_S}h"
        raise errors.usage("--lifetime", text, rule, "write for example 87600h")
    return dt.timedelta(seconds=seconds)


def _parser(prog: str) -> parser.Parser:
    made = parser.Parser(
        prog=prog,
        description="Make the Secrets of an installation: the webhook's certificate, and the key\n"
        "that signs grants of cards. What is there and good is kept. A certificate is\n"
        "renewed when it cannot be read, is for other hosts, or is in the last third\n"
        "of its life; a key is never overwritten.",
        epilog="Exit code 0: all is there; 1: it could not be made; 2: wrong usage.",
    )
    api_jobs.add_flags(made)
    made.add_argument(
        "--tls-secret", default="", metavar="NAME", help="with tls.crt, tls.key and ca.crt"
    )
    made.add_argument(
        "--hosts", default="", metavar="HOSTS", help="names and addresses it is for, with commas"
    )
    made.add_argument(
        "--webhook",
        default="",
        metavar="NAME",
        help="MutatingWebhookConfiguration that must trust a new certificate before it is used",
    )
    made.add_argument(
        "--lifetime", default="87600h", metavar="TIME", help="of a new one (default 87600h)"
    )
    made.add_argument(
        "--grant-key-secret", default="", metavar="NAME", help="with the key that signs grants"
    )
    return made
