"""Commands that do one thing in a cluster and end: their flags, their client, their errors.

What they do is in `hami.installation`.
"""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Awaitable, Callable

from hami.cli import errors, parser, version
from hami.installation.errors import InstallationError
from hami.installation.job import Job
from hami.kube import access, client
from hami.kube import errors as kube_errors

_TIMEOUT_S = 15.0


def add_flags(made: parser.Parser) -> None:
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
    agent = f"hami/{version.number()} {prog.partition(' ')[2]}"
    async with client.Client(found, user_agent=agent, timeout=_TIMEOUT_S) as api:
        await work(Job(api, say))


def say(line: str) -> None:
    print(line, flush=True)  # noqa: T201 - whoever waits, or reads the job's log, sees it at once
