"""The kube-scheduler stand-in: parts, loop, process.

Watches fill the view of the cluster and the queue; a loop empties the queue.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import time
import uuid
from collections.abc import Callable, Coroutine
from typing import Any, NoReturn

from hami.kube import access, paths
from hami.kube.client import Client
from hami.kube.informer import Informer
from hami.kube.lease import LeaseElector
from hami.serving import lifetime
from hami.wire import objects
from hami_sandbox.kube_scheduler import nodes, pods
from hami_sandbox.kube_scheduler.attempts import Attempts
from hami_sandbox.kube_scheduler.cluster_view import ClusterState
from hami_sandbox.kube_scheduler.configuration import Configuration
from hami_sandbox.kube_scheduler.events import PodRecorder
from hami_sandbox.kube_scheduler.extenders import Extenders
from hami_sandbox.kube_scheduler.queue import Queue

_log = logging.getLogger(__name__)

#: kube-scheduler's watch leaves out ended pods: they take no room.
_NOT_ENDED = {"fieldSelector": "status.phase!=Succeeded,status.phase!=Failed"}
_EXPIRE_EVERY_S = 5.0
_LEADING_AGAIN_S = 1.0


class Scheduler:
    def __init__(
        self,
        configuration: Configuration,
        client: Client,
        extenders: Extenders,
        *,
        aside: Client,
        hostname: str = "",
        clock: Callable[[], float] = time.monotonic,
        now: Callable[[], float] = time.time,
    ) -> None:
        """Build the parts; `aside` is for lease and events, which must not queue behind pods."""
        hostname = hostname or socket.gethostname()
        #: Set when the loop may have something to do.
        self._stirred = asyncio.Event()
        self.queue = Queue(
            clock=clock,
            first=configuration.first_backoff,
            longest=configuration.longest_backoff,
            on_change=self._stirred.set,
        )
        schedulers = configuration.schedulers
        whole = any(not extender.node_cache_capable for extender in configuration.extenders)
        self.node_watch = Informer(client, paths.nodes(), nodes.decoder(whole=whole), kind="nodes")
        self.pod_watch = Informer(
            client,
            paths.pods(),
            pods.decoder(configuration.ignored),
            kind="pods",
            query=_NOT_ENDED,
        )
        self.cluster = ClusterState(
            self.queue,
            pods=self.pod_watch,
            nodes=self.node_watch,
            schedulers=schedulers,
            clock=clock,
        )
        self.recorder = PodRecorder(
            client, aside=aside, schedulers=schedulers, host=hostname, now=now
        )
        self.attempts = Attempts(
            client,
            cluster=self.cluster,
            queue=self.queue,
            extenders=extenders,
            recorder=self.recorder,
        )
        self.elector: LeaseElector | None = None
        if configuration.election is not None:
            election = configuration.election
            self.elector = LeaseElector(
                aside,
                namespace=election.namespace,
                name=election.name,
                # hami finds the lease of its own pod's kube-scheduler by this form.
                identity=f"{hostname}_{uuid.uuid4()}",
                lease_duration=election.lease_duration,
                renew_deadline=election.renew_deadline,
                retry_period=election.retry_period,
                on_observed=self._on_lease,
            )

    @property
    def leading(self) -> bool:
        return self.elector is None or self.elector.holding

    def background(self) -> dict[str, Coroutine[Any, Any, None]]:
        """Return everything that runs for as long as the process does."""
        works: dict[str, Coroutine[Any, Any, None]] = {
            "nodes": self.node_watch.run(),
            "pods": self.pod_watch.run(),
            "scheduling": self._schedule(),
            "assumptions": self._expire(),
            **self.recorder.background(),
        }
        if self.elector is not None:
            works["lease"] = self.elector.run()
        return works

    async def _schedule(self) -> NoReturn:
        await self.node_watch.wait_synced()
        await self.pod_watch.wait_synced()
        _log.info("scheduling")
        while True:
            self._stirred.clear()
            entry = self.queue.pop() if self.leading else None
            if entry is None:
                await self._wait()
            else:
                await self.attempts.try_one(entry)
                await asyncio.sleep(0)  # the watches and the bindings have their turn

    async def _wait(self) -> None:
        """Wait until there may be a pod to try."""
        seconds = self.queue.seconds_to_next() if self.leading else _LEADING_AGAIN_S
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._stirred.wait()

    async def _expire(self) -> NoReturn:
        while True:
            await asyncio.sleep(_EXPIRE_EVERY_S)
            for pod in self.cluster.expire():
                _log.warning(
                    "bound pod was not seen on its node, trying again", extra={"pod": pod.key}
                )

    def _on_lease(self, _: objects.Lease) -> None:
        self._stirred.set()


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
