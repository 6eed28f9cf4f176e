"""Commands that do one thing in a cluster and end: certs, cleanup.

Commands that do one thing in a cluster and end: their flags, their client, their errors.
What they do is in `hami.installation`.

`hami certs create`: the Secrets that an installation needs, made or renewed as needed.
The chart runs it before it installs or upgrades; a person may run it at any time.

`hami cleanup`: after an uninstall, take away what Helm does not know of.
The chart runs it after it has been uninstalled; a person may run it again.

`hami certs rotate-grant-key`: another key signs grants from now on.
A person runs it, when a key may have leaked or a rule asks for it.

`hami certs patch`: the API server trusts our webhook's certificate.
The chart runs it after it has installed or upgraded.
"""

from __future__ import annotations

import argparse
import asyncio
import datetime as dt
from collections.abc import Awaitable, Callable, Sequence

from hami.cli import errors
from hami.cli import main as cli_main
from hami.installation import cleanup, grant_secret, pem, webhook_trust
from hami.installation.job import InstallationError, Job
from hami.kube import access, client
from hami.kube import errors as kube_errors
from hami.vendors import table
from hami.wire import annotation_keys, text_values

_TIMEOUT_S = 15.0


def add_flags(made: errors.Parser) -> None:
    """Add what says where the cluster and the namespace are."""
    made.add_argument("--namespace", required=True, metavar="NAMESPACE", help="of the installation")
    made.add_argument(
        "--kubeconfig",
        default="",
        metavar="FILE",
        help="default: $KUBECONFIG, else the pod's service account, else ~/.kube/config",
    )
    made.add_argument("--context", default="", metavar="NAME", help="of the kubeconfig")


def run(asked: argparse.Namespace, work: Callable[[Job], Awaitable[None]], *, prog: str) -> None:
    """Do the work with a client of the cluster that the flags name."""
    try:
        found = access.find(asked.kubeconfig, context=asked.context)
    except kube_errors.AccessError as error:
        raise errors.UsageError(str(error)) from error
    try:
        asyncio.run(_with_client(found, work, prog))
    except InstallationError as error:
        raise errors.CommandError(str(error)) from error
    except kube_errors.KubeError as error:
        raise errors.CommandError(f"{found.origin}: {error}") from error


async def _with_client(
    found: access.Access, work: Callable[[Job], Awaitable[None]], prog: str
) -> None:
    agent = f"hami/{cli_main.version_number()} {prog.partition(' ')[2]}"
    async with client.Client(found, user_agent=agent, timeout=_TIMEOUT_S) as api:
        await work(Job(api, say))


def say(line: str) -> None:
    print(line, flush=True)  # noqa: T201 - whoever waits, or reads the job's log, sees it at once


_HOUR_S = 3600
_SHORTEST, _LONGEST = _HOUR_S, 100 * 365 * 24 * _HOUR_S


def create_certs(arguments: Sequence[str], *, prog: str) -> int:
    asked = _create_parser(prog).parse_args(arguments)
    _check(asked)
    hosts = pem.parse(asked.hosts, what="--hosts") if asked.tls_secret else ()
    lifetime = _lifetime(asked.lifetime)

    async def work(job: Job) -> None:
        if asked.tls_secret:
            await _certificate(job, asked, hosts, lifetime)
        if asked.grant_key_secret:
            await grant_secret.ensure(job, namespace=asked.namespace, name=asked.grant_key_secret)

    run(asked, work, prog=prog)
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
    seconds = text_values.parse_duration(text, what="--lifetime")
    if not _SHORTEST <= seconds <= _LONGEST:
        rule = f"must be from 1h to {_LONGEST // _HOUR_S}h"
        raise errors.usage("--lifetime", text, rule, "write for example 87600h")
    return dt.timedelta(seconds=seconds)


def _create_parser(prog: str) -> errors.Parser:
    made = errors.Parser(
        prog=prog,
        description="Make the Secrets of an installation: the webhook's certificate, and the key\n"
        "that signs grants of cards. What is there and good is kept. A certificate is\n"
        "renewed when it cannot be read, is for other hosts, or is in the last third\n"
        "of its life; a key is never overwritten.",
        epilog="Exit code 0: all is there; 1: it could not be made; 2: wrong usage.",
    )
    add_flags(made)
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


def clean_up(arguments: Sequence[str], *, prog: str) -> int:
    asked = _cleanup_parser(prog).parse_args(arguments)

    async def work(job: Job) -> None:
        failures = await cleanup.remove(
            job,
            namespace=asked.namespace,
            secrets=text_values.comma_list(asked.secrets),
            lease=asked.lease,
            marks=_marks(),
        )
        if failures:
            raise errors.CommandError(
                f"not all could be removed; see to it and run this again: {'; '.join(failures)}"
            )

    run(asked, work, prog=prog)
    return 0


def _marks() -> tuple[str, ...]:
    """Return the annotations of nodes that only our own processes write."""
    (keys,) = (vendor.annotations for vendor in table.built_in() if vendor.section == "nvidia")
    agents = (keys.register, keys.pair_scores, keys.binding, keys.lock_reason, keys.shares)
    return (annotation_keys.WAKE_UP, *agents)


def _cleanup_parser(prog: str) -> errors.Parser:
    made = errors.Parser(
        prog=prog,
        description="Remove what an installation leaves behind: Secrets that `hami certs create`\n"
        "made, the lease, and the annotations by which nodes offer their cards.",
        epilog="Exit code 0: nothing is left; 1: something is; 2: wrong usage.",
    )
    add_flags(made)
    made.add_argument(
        "--secrets",
        default="",
        metavar="NAMES",
        help="with commas; only those hami made are removed",
    )
    made.add_argument("--lease", default="", metavar="NAME", help="as --leader-elect-resource-name")
    return made


def rotate_grant_key(arguments: Sequence[str], *, prog: str) -> int:
    asked = _rotate_parser(prog).parse_args(arguments)
    wait = text_values.parse_duration(asked.wait, what="--wait")
    if wait < 0:
        raise errors.usage("--wait", asked.wait, "is negative", "write for example 3m")

    async def work(job: Job) -> None:
        await grant_secret.rotate(
            job, namespace=asked.namespace, name=asked.grant_key_secret, wait=wait
        )

    run(asked, work, prog=prog)
    return 0


def _rotate_parser(prog: str) -> errors.Parser:
    made = errors.Parser(
        prog=prog,
        description="Sign grants of cards with a new key. First every node learns it, then the\n"
        "scheduler uses it; what the old key signed stays good until the next rotation.",
        epilog="Exit code 0: done; 1: not done, nothing is broken, run it again; 2: wrong usage.",
    )
    add_flags(made)
    made.add_argument("--grant-key-secret", required=True, metavar="NAME", help="with the keys")
    made.add_argument(
        "--wait",
        default="3m",
        metavar="TIME",
        help="how long kubelets may take to bring a changed Secret to all pods (default 3m)",
    )
    return made


def patch_webhook(arguments: Sequence[str], *, prog: str) -> int:
    asked = _patch_parser(prog).parse_args(arguments)

    async def work(job: Job) -> None:
        await webhook_trust.set_from_secret(
            job, namespace=asked.namespace, secret=asked.tls_secret, webhook=asked.webhook
        )

    run(asked, work, prog=prog)
    return 0


def _patch_parser(prog: str) -> errors.Parser:
    made = errors.Parser(
        prog=prog,
        description="Write the authorities of a TLS Secret (its ca.crt) into the caBundle of\n"
        "every webhook of a MutatingWebhookConfiguration.",
        epilog="Exit code 0: they are there; 1: they could not be written; 2: wrong usage.",
    )
    add_flags(made)
    made.add_argument("--tls-secret", required=True, metavar="NAME", help="whose ca.crt to take")
    made.add_argument(
        "--webhook", required=True, metavar="NAME", help="MutatingWebhookConfiguration to change"
    )
    return made
