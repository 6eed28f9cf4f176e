"""`hami monitor`, from start to end: what containers use, shown, and held against the driver.

It writes nothing but Events, and the two numbers that HAMi's library expects. It needs neither the
API server nor the driver to go on: what they would add is missing meanwhile. It is meant to be
small: no numpy, no grpc.
"""

from __future__ import annotations

import asyncio
import importlib.metadata
import logging
import socket
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

from hami.kube import access
from hami.kube.client import Client
from hami.kube.events import EventRecorder
from hami.monitor.audit import Audit
from hami.monitor.containers import Unreadable
from hami.monitor.driver import Sampler
from hami.monitor.events import AuditEvents
from hami.monitor.hami_feedback import HamiFeedback
from hami.monitor.pods import Pods
from hami.monitor.processes import Processes
from hami.monitor.scrape import Scrape
from hami.monitor.settings import Settings
from hami.monitor.usage import Readings
from hami.node.layout import NodeLayout
from hami.serving import addresses, endpoints, lifetime, metrics
from hami.serving.http_server import Server

_log = logging.getLogger(__name__)

USER_AGENT = "hami-monitor"


async def run(settings: Settings) -> None:
    """Run until SIGTERM or SIGINT."""
    stop = lifetime.stop_asked()
    lifetime.bound()
    async with access.client(settings, user_agent=USER_AGENT) as client:
        await _serve(Monitor(settings, client), stop)
    _log.info("stopped")


class Monitor:
    """All parts of one node's monitor."""

    def __init__(
        self, settings: Settings, client: Client, *, sampler: Sampler | None = None
    ) -> None:
        self.settings = settings
        self.registry = metrics.Registry()
        self.registry.build_info(version=importlib.metadata.version("hami"))
        unreadable = Unreadable(
            self.registry.counter(
                "hami_monitor_unreadable_regions",
                "Readings of a container's files that failed, by reason.",
                ("reason",),
            )
        )
        layout = NodeLayout(
            hook_path=Path(settings.hook_path),
            state_dir=Path(settings.state_dir),
            run_dir=Path(settings.run_dir),
        )
        node = settings.node_name or socket.gethostname()
        self.pods = Pods(client, node=node, resync_interval=settings.resync_interval)
        self.events = EventRecorder(client, component=USER_AGENT, host=node)
        self.sampler = sampler or Sampler(settings.driver_root)
        self.registry.gauge(
            "hami_monitor_driver_up", "Whether the driver answers: 1 or 0."
        ).set_function(lambda: float(self.sampler.open))
        readings = Readings(layout, self.pods, unreadable)
        self.rounds = Audit(
            sampler=self.sampler,
            processes=Processes(Path(settings.proc_dir)),
            readings=readings,
            pods=self.pods,
            teller=AuditEvents(self.events, node),
        )
        self.upkeep = HamiFeedback(
            layout,
            readings=readings,
            pods=self.pods,
            unreadable=unreadable,
            keep_for=settings.hami_resync_interval,
        )
        self.scrape = Scrape(
            node=node,
            readings=readings,
            rounds=self.rounds,
            pods=self.pods,
            legacy=settings.legacy_metrics,
        )
        self.stopping = lifetime.Stopping(0.0)
        checks = endpoints.Health({"running": self.stopping.why_not_ready})
        self.routes = (
            metrics.route(self.registry, self.scrape.families),
            *endpoints.health_routes(checks.ready),
        )


async def _serve(monitor: Monitor, stop: asyncio.Event) -> None:
    server = Server(monitor.routes, drain_timeout=1)
    async with asyncio.TaskGroup() as group:
        if monitor.settings.metrics_bind_address:
            await server.start(*addresses.parse(monitor.settings.metrics_bind_address))
        works: dict[str, Coroutine[Any, Any, None]] = {
            "informer of pods": monitor.pods.informer.run(),
            "events": monitor.events.run(),
            "driver": monitor.rounds.run(),
            "HAMi's containers": monitor.upkeep.run(),
            "memory": _keep_small(monitor),
        }
        tasks = lifetime.start(group, works)
        await stop.wait()
        await monitor.stopping.announce()
        await server.stop()
        for task in tasks:
            task.cancel()
    monitor.sampler.close()


async def _keep_small(monitor: Monitor) -> None:
    async with asyncio.TaskGroup() as group:
        group.create_task(lifetime.freeze_when_synced([monitor.pods.informer]))
        group.create_task(lifetime.keep_giving_back())
