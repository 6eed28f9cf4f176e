"""`hami monitor`: show what containers use, and compare it with the driver.

It writes Events, marks on pods of its node that have more of a card than they were given, and the
two numbers that HAMi's library expects. It goes on without the API server and without the driver:
what they would add is missing meanwhile. To stay small it loads neither numpy nor grpc.
"""

from __future__ import annotations

import asyncio
import importlib.metadata
import logging
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

from hami.kube import access
from hami.kube.client import Client
from hami.kube.events import EventRecorder
from hami.monitor.audit import Audit
from hami.monitor.collect import Collector
from hami.monitor.containers import PreparedContainers, Unreadable
from hami.monitor.driver import Sampler
from hami.monitor.events import AuditEvents
from hami.monitor.hami import HamiContainers, HamiFeedback
from hami.monitor.metrics import NodeMetrics
from hami.monitor.overuse import OveruseMarks
from hami.monitor.pods import Pods
from hami.monitor.processes import Processes
from hami.monitor.settings import Settings
from hami.monitor.usage import UsageReader
from hami.node.layout import NodeLayout
from hami.node.released_cards import ReleasedFile
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

    def __init__(self, settings: Settings, client: Client) -> None:
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
        node = settings.node
        self.pods = Pods(client, node=node, resync_interval=settings.resync_interval)
        self.events = EventRecorder(client, component=USER_AGENT, host=node)
        self.sampler = Sampler(settings.driver_root, released=ReleasedFile(layout.released_cards))
        self.registry.gauge(
            "hami_monitor_driver_up", "Whether the driver answers: 1 or 0."
        ).set_function(self.sampler.is_open)
        prepared = PreparedContainers(layout, unreadable)
        usage = UsageReader(layout, unreadable)
        hami_containers = HamiContainers(layout, self.pods, unreadable)
        self.hami_feedback = HamiFeedback(
            layout,
            containers=hami_containers,
            pods=self.pods,
            unreadable=unreadable,
            keep_for=settings.hami_resync_interval,
        )
        self.marks = OveruseMarks(
            client, self.pods, node=node, tolerance_mib=settings.overuse_tolerance
        )
        self.audit = Audit(
            sampler=self.sampler,
            processes=Processes(Path(settings.proc_dir)),
            prepared=prepared,
            usage=usage,
            hami_containers=hami_containers,
            pods=self.pods,
            events=AuditEvents(self.events, node),
            marks=self.marks,
        )
        collector = Collector(
            node=node,
            prepared=prepared,
            usage=usage,
            hami_containers=hami_containers,
            audit=self.audit,
            pods=self.pods,
        )
        node_metrics = NodeMetrics(collector, legacy=settings.legacy_metrics)
        self.stopping = lifetime.Stopping(0.0)
        checks = endpoints.Health({"running": self.stopping.why_not_ready})
        self.routes = (
            metrics.route(self.registry, node_metrics.families),
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
            "audit": monitor.audit.run(),
            "marks": monitor.marks.run(),
            "HAMi's containers": monitor.hami_feedback.run(),
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
