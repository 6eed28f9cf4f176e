"""A device manager in a folder of its own, with plugins and pods for it."""

from __future__ import annotations

import asyncio
import contextlib
import pathlib
from collections.abc import AsyncIterator, Sequence
from typing import Any

from hami.agent.kubelet import checkpoint
from hami.agent.kubelet.checkpoint import Entry
from hami.agent.kubelet.kubelet_api import AllocateResponse
from hami.agent.kubelet.registration import Registration
from hami.node.layout import NodeLayout
from hami_sandbox.kubelet.devices.manager import DeviceManager
from tests.unit.agent.kubelet_rig import RESOURCE, Plugin
from tests.unit.kube.following import until

Object = dict[str, Any]


class FakePlugin(Plugin):
    """Notes the calls in their order; may be told to refuse or to hold an Allocate."""

    def __init__(self, *ids: str, resource: str = RESOURCE, **options: bool) -> None:
        super().__init__(*ids)
        self.resource = resource
        self.pre_start_required = options.get("pre_start", True)
        self.preferred_allocation = options.get("preferred", True)
        self.calls: list[tuple[str, Any]] = []
        self.asked_preference: list[tuple[frozenset[str], frozenset[str], int]] = []
        self.holding: asyncio.Event | None = None
        #: In the place of one that is made up.
        self.answering: AllocateResponse | None = None
        self._answers = 0

    async def allocate(self, requests: list[tuple[str, ...]]) -> list[AllocateResponse]:
        self.calls.append(("Allocate", [frozenset(ids) for ids in requests]))
        if self.holding is not None:
            await self.holding.wait()
        self._answers += 1
        answers = await super().allocate(requests)
        return [
            self.answering
            or AllocateResponse(envs=one.envs, annotations={"answer": str(self._answers)})
            for one in answers
        ]

    async def pre_start(self, device_ids: frozenset[str]) -> None:
        self.calls.append(("PreStart", device_ids))
        await super().pre_start(device_ids)

    async def preferred(
        self, available: tuple[str, ...], must_include: tuple[str, ...], size: int
    ) -> tuple[str, ...]:
        self.asked_preference.append((frozenset(available), frozenset(must_include), size))
        return await super().preferred(available, must_include, size)


class Desk:
    """What outlives a manager: the folder, and who is active."""

    def __init__(self, folder: pathlib.Path) -> None:
        self.layout = NodeLayout(kubelet_dir=folder)
        self.active: set[str] = set()
        self.ready = True
        #: How often a manager said that something changed.
        self.notices = 0

    @contextlib.asynccontextmanager
    async def manager(
        self, *, running: Sequence[tuple[str, str]] = (), **options: Any
    ) -> AsyncIterator[DeviceManager]:
        """Run one; whatever it had in memory is gone afterwards."""
        manager = DeviceManager(
            self.layout.kubelet_dir,
            active_pods=lambda: frozenset(self.active),
            sources_ready=lambda: self.ready,
            **options,
        )
        manager.add_handler(self._noticed)
        await manager.start(running)
        try:
            yield manager
        finally:
            await manager.stop()

    def _noticed(self) -> None:
        self.notices += 1

    @contextlib.asynccontextmanager
    async def plugin(
        self, plugin: Plugin, manager: DeviceManager | None = None, *, name: str = "fake"
    ) -> AsyncIterator[Registration]:
        """Serve a plugin by the agent's own link; with a manager, wait until it is listed."""
        link = Registration(self.layout, plugin, name, check_every=0.01)
        running = asyncio.create_task(link.run())
        try:
            if manager is not None:
                await until(lambda: manager.allocatable().get(plugin.resource))
            yield link
        finally:
            await link.stop()
            await running

    async def admit(self, manager: DeviceManager, pod: Object) -> Object:
        self.active.add(uid(pod))
        await manager.admit(pod)
        return pod

    def end(self, pod: Object) -> None:
        self.active.discard(uid(pod))

    def entries(self) -> dict[tuple[str, str], Entry]:
        """Read the checkpoint as the agent does, by pod UID and container."""
        found = checkpoint.read(self.layout.checkpoint)
        return {(entry.pod_uid, entry.container): entry for entry in found.entries}


def pod(name: str, **containers: int | str | tuple[str, int]) -> Object:
    """Make a pod; each container by how many devices it wants, with its kind if it is no app."""
    spec: Object = {"initContainers": [], "containers": []}
    for container, wanted in containers.items():
        kind, count = wanted if isinstance(wanted, tuple) else ("app", wanted)
        made: Object = {"name": container, "resources": {"limits": {"cpu": "1", RESOURCE: count}}}
        if kind == "sidecar":
            made["restartPolicy"] = "Always"
        spec["containers" if kind == "app" else "initContainers"].append(made)
    return {
        "metadata": {"name": name, "namespace": "team", "uid": f"uid-{name}"},
        "spec": spec,
    }


def uid(pod: Object) -> str:
    return str(pod["metadata"]["uid"])
