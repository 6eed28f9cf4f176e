"""Device plugins for existing MIG devices, one resource per profile (`mixed`).

kubelet hands MIG devices out by itself: a MIG device is a card of its own for the container that
has it, so it needs no grant, no limit and no PreStart.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import NoReturn

from hami.agent.binding_mode import BindingMode
from hami.agent.cards.device_ids import ListedDevice
from hami.agent.cards.node_cards import NodeCards
from hami.agent.containers.nvidia_cdi import NvidiaSpecs
from hami.agent.containers.prepare import VISIBLE, Injection, device_list
from hami.agent.errors import RefusalError
from hami.agent.kubelet.kubelet_api import AllocateResponse, Mount
from hami.agent.kubelet.plugin_server import DeviceList
from hami.agent.kubelet.registration import Registration
from hami.node.layout import NodeLayout
from hami.node.nvml_cards import MigDevice


class MigPlugins:
    """One plugin for each profile; profiles appear and disappear with the cards."""

    def __init__(
        self,
        layout: NodeLayout,
        *,
        cards: NodeCards,
        mode: BindingMode,
        nvidia: NvidiaSpecs,
        injection: Injection,
    ) -> None:
        self._layout = layout
        self._cards = cards
        self._mode = mode
        self._nvidia = nvidia
        self._injection = injection
        self._plugins: dict[str, MigPlugin] = {}
        self._registrations: dict[str, Registration] = {}
        self._new = asyncio.Event()

    @property
    def resources(self) -> tuple[str, ...]:
        """Return the resources of the profiles seen since the start."""
        return tuple(self._plugins)

    def refresh(self) -> None:
        """Give kubelet the current MIG devices; a profile without any has an empty list."""
        for resource in self._cards.inventory.static_mig.keys() - self._plugins.keys():
            self._plugins[resource] = MigPlugin(resource, self)
            self._new.set()
        for plugin in self._plugins.values():
            plugin.refresh()

    def devices(self, resource: str) -> tuple[MigDevice, ...]:
        """Return the MIG devices that a resource offers now."""
        return self._cards.inventory.static_mig.get(resource, ())

    def is_healthy(self, device: MigDevice) -> bool:
        cards = self._cards
        return cards.is_healthy(device.parent) and device.parent not in cards.cordoned

    def cdi_name(self, uuid: str) -> str:
        """Return a MIG device's CDI name; empty: NVIDIA's runtime reads the environment."""
        if self._injection == "runtime" or not self._mode.late:
            return ""
        return self._nvidia.qualified_name(uuid)

    async def run(self) -> NoReturn:
        """Serve every profile's plugin, for ever."""
        async with asyncio.TaskGroup() as group:
            while True:
                await self._new.wait()
                self._new.clear()
                for resource in self._plugins.keys() - self._registrations.keys():
                    socket = "nvidia-" + resource.rpartition("/")[2]
                    registration = Registration(self._layout, self._plugins[resource], socket)
                    self._registrations[resource] = registration
                    group.create_task(registration.run())

    async def stop(self) -> None:
        for registration in self._registrations.values():
            await registration.stop()


class MigPlugin:
    """Answers kubelet for the MIG devices of one profile."""

    pre_start_required = False
    preferred_allocation = False

    def __init__(self, resource: str, plugins: MigPlugins) -> None:
        self.resource = resource
        self._plugins = plugins
        self.list: DeviceList[ListedDevice] = DeviceList()

    def refresh(self) -> None:
        """Give kubelet the current list."""
        self.list.set(
            [
                ListedDevice(device.uuid, self._plugins.is_healthy(device))
                for device in self._plugins.devices(self.resource)
            ]
        )

    def devices(self) -> AsyncIterator[Sequence[ListedDevice]]:
        return self.list.watch()

    async def allocate(self, requests: Sequence[tuple[str, ...]]) -> list[AllocateResponse]:
        return [self._answer(device_ids) for device_ids in requests]

    def _answer(self, device_ids: Sequence[str]) -> AllocateResponse:
        known = {device.uuid for device in self._plugins.devices(self.resource)}
        for device_id in device_ids:
            if device_id not in known:
                raise RefusalError(
                    f"{self.resource} {device_id}",
                    "is no MIG device of this node any more",
                    "delete the pod to reschedule it",
                )
        names = [self._plugins.cdi_name(device_id) for device_id in device_ids]
        if all(names):
            return AllocateResponse(cdi_devices=tuple(names))
        mounts = (
            Mount(container_path=each.container, host_path=each.host, read_only=True)
            for each in device_list(device_ids)
        )
        return AllocateResponse(envs={VISIBLE: ",".join(device_ids)}, mounts=tuple(mounts))

    async def pre_start(self, device_ids: frozenset[str]) -> None:
        """Do nothing: `pre_start_required` is false, so kubelet does not call this."""

    async def preferred(
        self, _available: Sequence[str], _must_include: Sequence[str], _size: int
    ) -> tuple[str, ...]:
        return ()
