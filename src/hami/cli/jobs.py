"""Commands that do one thing in a cluster and end: certs and cleanup.

`hami.installation` does the work. Each command is followed by its parser; what they share is at the
end.

| command | run by |
|---|---|
| `hami certs create` | the chart, before it installs or upgrades |
| `hami certs patch` | the chart, after it has installed or upgraded |
| `hami certs rotate-grant-key` | a person, if a key may have leaked or a policy demands it |
| `hami cleanup` | the chart, after it has been uninstalled |
"""

from __future__ import annotations

import argparse
import asyncio
import datetime as dt
from collections.abc import Awaitable, Callable, Sequence

from hami.cli import errors
from hami.cli import main as cli_main
from hami.installation import cleanup, grant_secret, pem, tls_secret, webhook_trust
from hami.installation.job import InstallationError, Job
from hami.kube import access, client
from hami.kube import errors as kube_errors
from hami.vendors import table
from hami.wire import annotation_keys, text_values

_TIMEOUT_S = 15.0
_HOUR_S = 3600
_SHORTEST, _LONGEST = _HOUR_S, 100 * 365 * 24 * _HOUR_S


def create_certs(arguments: Sequence[str], *, prog: str) -> int:
    """Create the Secrets of an installation, or renew them: `hami certs create`."""
    asked = _create_parser(prog).parse_args(arguments)
    _check(asked)
    hosts = pem.parse(asked.hosts, what="--hosts") if asked.tls_secret else ()
    lifetime = _lifetime(asked.lifetime)

    async def work(job: Job) -> None:
        if asked.tls_secret:
            await _certificate(job, asked, hosts, lifetime)
        if asked.grant_key_secret:
            await grant_secret.ensure_v1(
                job, namespace=asked.namespace, name=asked.grant_key_secret
            )
        if asked.grant_signing_secret:
            await grant_secret.ensure(
                job,
                namespace=asked.namespace,
                signing=asked.grant_signing_secret,
                public=asked.grant_public_secret,
            )

    _run(asked, work, prog=prog)
    return 0


def _create_parser(prog: str) -> errors.Parser:
    made = errors.Parser(
        prog=prog,
        description="Create the Secrets of an installation: the webhook's certificate, the key\n"
        "that signs grants of cards, and its public key. Valid ones are kept. A certificate is\n"
        "renewed when it cannot be read, is for other hosts, or is in the last third of its\n"
        "lifetime; a key is never overwritten.",
        epilog="Exit code 0: all exist; 1: one could not be created; 2: wrong usage.",
    )
    _add_flags(made)
    made.add_argument(
        "--tls-secret",
        default="",
        metavar="NAME",
        help="Secret for the certificate: tls.crt, tls.key and ca.crt",
    )
    made.add_argument(
        "--hosts",
        default="",
        metavar="HOSTS",
        help="host names and addresses of the certificate, separated by commas",
    )
    made.add_argument(
        "--webhook",
        default="",
        metavar="NAME",
        help="MutatingWebhookConfiguration that must trust a new certificate before it is used",
    )
    made.add_argument(
        "--lifetime",
        default="87600h",
        metavar="TIME",
        help="of a new certificate (default 87600h)",
    )
    _add_key_flags(made)
    return made


def _add_key_flags(made: errors.Parser) -> None:
    for name, help_ in (
        ("signing", "Secret with the key that signs grants, for schedulers only"),
        ("public", "Secret with its public key, for the agents"),
        ("key", "Secret with the key of grants of form v1, which both have"),
    ):
        made.add_argument(f"--grant-{name}-secret", default="", metavar="NAME", help=help_)


def _check_key_flags(asked: argparse.Namespace) -> None:
    if bool(asked.grant_signing_secret) != bool(asked.grant_public_secret):
        raise errors.UsageError(
            "a signing key has a public key; give both --grant-signing-secret=NAME and "
            "--grant-public-secret=NAME"
        )


def _check(asked: argparse.Namespace) -> None:
    _check_key_flags(asked)
    if not (asked.tls_secret or asked.grant_signing_secret or asked.grant_key_secret):
        raise errors.UsageError(
            "nothing to create; add --tls-secret=NAME --hosts=HOSTS, or "
            "--grant-signing-secret=NAME --grant-public-secret=NAME, or all of them"
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


async def _certificate(
    job: Job, asked: argparse.Namespace, hosts: Sequence[str], lifetime: dt.timedelta
) -> None:
    wanted = tls_secret.Wanted(
        asked.namespace, asked.tls_secret, hosts, lifetime, webhook=asked.webhook
    )
    await tls_secret.ensure(job, wanted)


def patch_webhook(arguments: Sequence[str], *, prog: str) -> int:
    """Let the API server trust the webhook's certificate: `hami certs patch`."""
    asked = _patch_parser(prog).parse_args(arguments)

    async def work(job: Job) -> None:
        await webhook_trust.set_from_secret(
            job, namespace=asked.namespace, secret=asked.tls_secret, webhook=asked.webhook
        )

    _run(asked, work, prog=prog)
    return 0


def _patch_parser(prog: str) -> errors.Parser:
    made = errors.Parser(
        prog=prog,
        description="Write the authorities of a TLS Secret (its ca.crt) into the caBundle of\n"
        "every webhook of a MutatingWebhookConfiguration.",
        epilog="Exit code 0: written; 1: not written; 2: wrong usage.",
    )
    _add_flags(made)
    made.add_argument("--tls-secret", required=True, metavar="NAME", help="Secret with the ca.crt")
    made.add_argument(
        "--webhook", required=True, metavar="NAME", help="MutatingWebhookConfiguration to change"
    )
    return made


def rotate_grant_key(arguments: Sequence[str], *, prog: str) -> int:
    """Sign grants with a new key: `hami certs rotate-grant-key`."""
    asked = _rotate_parser(prog).parse_args(arguments)
    wait = text_values.parse_duration(asked.wait, what="--wait")
    if wait < 0:
        raise errors.usage("--wait", asked.wait, "is negative", "write for example 3m")

    _check_key_flags(asked)
    if not (asked.grant_signing_secret or asked.grant_key_secret):
        raise errors.UsageError(
            "nothing to exchange; add --grant-signing-secret=NAME --grant-public-secret=NAME"
        )

    async def work(job: Job) -> None:
        if asked.grant_key_secret:
            await grant_secret.rotate_v1(
                job, namespace=asked.namespace, name=asked.grant_key_secret, wait=wait
            )
        if asked.grant_signing_secret:
            await grant_secret.rotate(
                job,
                namespace=asked.namespace,
                signing=asked.grant_signing_secret,
                public=asked.grant_public_secret,
                wait=wait,
            )

    _run(asked, work, prog=prog)
    return 0


def _rotate_parser(prog: str) -> errors.Parser:
    made = errors.Parser(
        prog=prog,
        description="Sign grants of cards with a new key. First every node gets it, then the\n"
        "scheduler uses it; grants of the old key stay valid until the next rotation.",
        epilog="Exit code 0: done; 1: not done, the old key works, run it again; 2: wrong usage.",
    )
    _add_flags(made)
    _add_key_flags(made)
    made.add_argument(
        "--wait",
        default="3m",
        metavar="TIME",
        help="time in which kubelets bring a changed Secret to all pods (default 3m)",
    )
    return made


def clean_up(arguments: Sequence[str], *, prog: str) -> int:
    """Remove what Helm does not know of: `hami cleanup`."""
    asked = _cleanup_parser(prog).parse_args(arguments)

    async def work(job: Job) -> None:
        failures = await cleanup.remove(
            job,
            namespace=asked.namespace,
            secrets=text_values.comma_list(asked.secrets),
            lease=asked.lease,
            marks=_marks(),
            simulated=table.node_lists(table.built_in()),
        )
        if failures:
            raise errors.CommandError(
                f"not everything is removed: {'; '.join(failures)}; correct this and run the "
                "command again"
            )

    _run(asked, work, prog=prog)
    return 0


def _cleanup_parser(prog: str) -> errors.Parser:
    made = errors.Parser(
        prog=prog,
        description="Remove what an installation leaves behind: Secrets that `hami certs create`\n"
        "created, the lease, and the annotations by which nodes offer their cards.",
        epilog="Exit code 0: nothing is left; 1: something is left; 2: wrong usage.",
    )
    _add_flags(made)
    made.add_argument(
        "--secrets",
        default="",
        metavar="NAMES",
        help="names, separated by commas; only Secrets that hami created are removed",
    )
    made.add_argument(
        "--lease",
        default="",
        metavar="NAME",
        help="as --leader-elect-resource-name of `hami scheduler`",
    )
    return made


def _marks() -> tuple[str, ...]:
    """Return the annotations of nodes that only our own processes write."""
    keys = table.nvidia(table.built_in()).annotations
    agents = (keys.register, keys.pair_scores, keys.binding, keys.lock_reason, keys.shares)
    return (annotation_keys.REQUEUE, annotation_keys.NODE_GRANT_FORMS, *agents, keys.closed)


def _add_flags(made: errors.Parser) -> None:
    """Add the flags that name the cluster and the namespace."""
    made.add_argument("--namespace", required=True, metavar="NAMESPACE", help="of the installation")
    made.add_argument(
        "--kubeconfig",
        default="",
        metavar="FILE",
        help="default: $KUBECONFIG, else the pod's service account, else ~/.kube/config",
    )
    made.add_argument(
        "--context", default="", metavar="NAME", help="of the kubeconfig (default: its current one)"
    )


def _run(asked: argparse.Namespace, work: Callable[[Job], Awaitable[None]], *, prog: str) -> None:
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
        await work(Job(api, _say))


def _say(line: str) -> None:
    print(line, flush=True)  # noqa: T201 - at once, for a terminal and for the job's log
