"""`hami simulate-devices`: builds its parts in dependency order and runs them.

It needs no driver and no GPU library: only kubelet's folder of plugins and the API server.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine, Sequence
from pathlib import Path
from typing import Any

from hami.agent.kubelet.registration import Registration
from hami.kube import access
from hami.kube.client import Client
from hami.node.layout import NodeLayout
from hami.serving import addresses, endpoints, lifetime
from hami.serving.http_server import Server
from hami.simulation import cards, catalogue, description, endings
from hami.simulation.cards import VendorCards
from hami.simulation.description import CardGroup
from hami.simulation.node_annotations import NodeAnnotations
from hami.simulation.plugin import SimulatedPlugin
from hami.simulation.settings import Settings
from hami.vendors import device_config
from hami.vendors.table import Vendor

_log = logging.getLogger(__name__)

USER_AGENT = "hami-simulate-devices"


class Simulation:
    """All parts of one node's simulated devices."""

    def __init__(self, settings: Settings, client: Client, vendors: Sequence[VendorCards]) -> None:
        self.settings = settings
        self.annotations = NodeAnnotations(client, settings.node_name, vendors)
        self.layout = NodeLayout(kubelet_dir=Path(settings.kubelet_dir))
        self.registrations: dict[str, Registration] = {}
        for each in vendors:
            ending = endings.of(client, each)
            for resource, devices in each.offered().items():
                plugin = SimulatedPlugin(resource, devices, vendor=each.vendor.name, ending=ending)
                self.registrations[resource] = Registration(self.layout, plugin, _socket(resource))

    def why_not_ready(self) -> str:
        problems = [each.problem for each in self.registrations.values()]
        return next(filter(None, [self.annotations.problem, *problems]), "")


def cards_of(
    node: str, groups: Sequence[CardGroup], vendors: Sequence[Vendor]
) -> tuple[VendorCards, ...]:
    """Return the cards of a node by vendor, in the order of the table."""
    plugins = catalogue.built_in()
    return tuple(
        cards.of_vendor(node, vendor, plugins.plugin_of(vendor.name), of_it)
        for vendor in vendors
        if (of_it := [each for each in groups if each.vendor == vendor.name])
    )


def _socket(resource: str) -> str:
    return f"simulated-{resource.replace('/', '-')}"


async def run(settings: Settings) -> None:
    """Run until SIGTERM or SIGINT."""
    stop = lifetime.stop_asked()
    lifetime.bound()
    config = device_config.load_or_built_in(settings.device_config_file)
    described = description.load(settings.devices_file, config.vendors)
    groups = described.of_node(settings.node_name)
    if not groups:
        _log.info("no entry of the description names this node", extra={"node": settings.node_name})
    async with access.client(settings, user_agent=USER_AGENT) as client:
        vendors = cards_of(settings.node_name, groups, config.vendors)
        await serve(Simulation(settings, client, vendors), stop)
    _log.info("stopped")


async def serve(simulation: Simulation, stop: asyncio.Event) -> None:
    """Run all parts until `stop` is set, then end them in order."""
    checks = endpoints.Health({"devices": simulation.why_not_ready})
    server = Server(endpoints.health_routes(checks.ready), drain_timeout=1)
    registrations = list(simulation.registrations.values())
    async with asyncio.TaskGroup() as group:
        if simulation.settings.metrics_bind_address:
            await server.start(*addresses.parse(simulation.settings.metrics_bind_address))
        works: dict[str, Coroutine[Any, Any, None]] = {
            "annotations": simulation.annotations.run(),
            "memory": lifetime.keep_giving_back(),
        }
        tasks = lifetime.start(group, works)
        serving = [group.create_task(each.run(), name=each.resource) for each in registrations]
        await stop.wait()
        await simulation.annotations.withdraw()
        for each in registrations:
            await each.stop()
        await server.stop()
        for task in (*tasks, *serving):
            task.cancel()
