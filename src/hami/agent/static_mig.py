"""MIG devices that are there, offered as resources of their own (strategy `mixed`).

kubelet hands them out by itself: a MIG device is a card of its own for the container that has it,
so no grant, no limit and no PreStart is needed.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import NoReturn

from hami.agent.cards.device_ids import ListedDevice
from hami.agent.errors import RefusalError
from hami.agent.kubelet.kubelet_api import Allocation
from hami.agent.kubelet.plugin_server import DeviceList
from hami.agent.kubelet.registration import Registration
from hami.agent.late_binding import VISIBLE
from hami.node.layout import NodeLayout
from hami.node.nvml_cards import MigDevice


class MigPlugin:
    pre_start_required = False
    preferred_allocation = False

    def __init__(
        self,
        resource: str,
        *,
        parts: Callable[[], Sequence[MigDevice]],
        healthy: Callable[[str], bool],
        cdi_name: Callable[[str], str],
    ) -> None:
        self.resource = resource
        self._parts = parts
        #: Of a card by its UUID.
        self._healthy = healthy
        #: The CDI device of a MIG device; empty: NVIDIA's runtime is told by the environment.
        self._cdi_name = cdi_name
        self.list: DeviceList[ListedDevice] = DeviceList()

    def refresh(self) -> None:
        """Tell kubelet what there is now."""
        self.list.set(
            [ListedDevice(part.uuid, self._healthy(part.parent)) for part in self._parts()]
        )

    def devices(self) -> AsyncIterator[Sequence[ListedDevice]]:
        return self.list.watch()

    async def allocate(self, requests: Sequence[tuple[str, ...]]) -> list[Allocation]:
        return [self._answer(device_ids) for device_ids in requests]

    def _answer(self, device_ids: Sequence[str]) -> Allocation:
        known = {part.uuid for part in self._parts()}
        for device_id in device_ids:
            if device_id not in known:
                raise RefusalError(
                    f"{self.resource} {device_id}",
                    "is no MIG device of this node any more",
                    "delete the pod to have it placed anew",
                )
        names = [self._cdi_name(device_id) for device_id in device_ids]
        if all(names):
            return Allocation(cdi_devices=tuple(names))
        return Allocation(envs={VISIBLE: ",".join(device_ids)})

    async def pre_start(self, device_ids: frozenset[str]) -> None:
        """Do nothing: kubelet was told not to ask."""

    async def preferred(
        self, _available: Sequence[str], _must_include: Sequence[str], _size: int
    ) -> tuple[str, ...]:
        return ()


class MigPlugins:
    """One plugin for each profile that there is; profiles come and go with the cards."""

    def __init__(
        self,
        layout: NodeLayout,
        *,
        parts: Callable[[], Mapping[str, tuple[MigDevice, ...]]],
        healthy: Callable[[str], bool],
        cdi_name: Callable[[str], str],
    ) -> None:
        self._layout = layout
        self._parts = parts
        self._healthy = healthy
        self._cdi_name = cdi_name
        self._plugins: dict[str, MigPlugin] = {}
        self._links: dict[str, Registration] = {}
        self._new = asyncio.Event()

    def refresh(self) -> None:
        """Tell kubelet what there is now. A profile that is gone is offered as nothing."""
        for resource in self._parts().keys() - self._plugins.keys():
            self._plugins[resource] = MigPlugin(
                resource,
                parts=functools.partial(self._parts_of, resource),
                healthy=self._healthy,
                cdi_name=self._cdi_name,
            )
            self._new.set()
        for plugin in self._plugins.values():
            plugin.refresh()

    def _parts_of(self, resource: str) -> tuple[MigDevice, ...]:
        return self._parts().get(resource, ())

    async def run(self) -> NoReturn:
        """Serve every profile's plugin, for ever."""
        async with asyncio.TaskGroup() as group:
            while True:
                await self._new.wait()
                self._new.clear()
                for resource in self._plugins.keys() - self._links.keys():
                    socket = "nvidia-" + resource.rpartition("/")[2]
                    link = Registration(self._layout, self._plugins[resource], socket)
                    self._links[resource] = link
                    group.create_task(link.run())

    async def stop(self) -> None:
        for link in self._links.values():
            await link.stop()
