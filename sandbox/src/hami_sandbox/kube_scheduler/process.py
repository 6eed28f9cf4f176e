"""`python -m hami_sandbox.kube_scheduler`, from start to end."""

from __future__ import annotations

import asyncio
import contextlib
import logging

from hami.kube import access
from hami.kube.client import Client
from hami.serving import lifetime
from hami_sandbox.kube_scheduler.assembly import Scheduler
from hami_sandbox.kube_scheduler.configuration import Configuration
from hami_sandbox.kube_scheduler.extenders import Extenders

_log = logging.getLogger(__name__)

USER_AGENT = "kube-scheduler"
_RELEASE_S = 1.0


async def run(configuration: Configuration) -> None:
    """Run until SIGTERM or SIGINT; the lease is then given up, so that the next may take it."""
    stop = lifetime.stop_asked()
    server = access.find(configuration.kubeconfig)
    async with (
        Client(
            server, user_agent=USER_AGENT, qps=configuration.qps, burst=configuration.burst
        ) as client,
        Client(server, user_agent=f"{USER_AGENT}/leader-election") as aside,
        Extenders(configuration.extenders) as extenders,
    ):
        scheduler = Scheduler(configuration, client, extenders, aside=aside)
        async with asyncio.TaskGroup() as group:
            tasks = lifetime.start(group, scheduler.background())
            _log.info("started", extra={"schedulers": configuration.schedulers})
            await stop.wait()
            if scheduler.elector is not None:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(_RELEASE_S):
                        await scheduler.elector.release()
            for task in tasks:
                task.cancel()
        await scheduler.attempts.end()
    _log.info("stopped")
