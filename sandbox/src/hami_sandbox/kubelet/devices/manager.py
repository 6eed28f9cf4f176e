"""The device manager of the kubelet stand-in, after kubelet 1.36's.

A pod is admitted once: each of its containers, init containers first, gets all its device ids in
one Allocate, and the checkpoint is written before the next container. PreStart comes before every
start of a container. Ids are free again when their pod is no longer active and the next allocation
or PodResources call checks. After a restart all comes from the checkpoint: ids stay where they
are, and no device is healthy until its plugin has registered again.

Differences from kubelet: NUMA nodes do not decide (policy `none`), and the old stream of a plugin
that has registered again is ignored (in kubelet its end stops the new registration, too).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

from hami.agent.kubelet import grpc
from hami.agent.kubelet.kubelet_api import AllocateResponse
from hami.node.layout import NodeLayout
from hami.wire.objects import ContainerKind
from hami_sandbox.errors import SandboxError
from hami_sandbox.kubelet.devices import allocations, pod_resources
from hami_sandbox.kubelet.devices.allocations import NO_NUMA_NODE, AllocatedIds, Allocations
from hami_sandbox.kubelet.devices.plugins import (
    STOP_GRACE,
    Plugins,
    register_handler,
    remove_sockets,
)
from hami_sandbox.kubelet.devices.pods import (
    AdmissionError,
    Container,
    DevicesError,
    Pod,
    StartError,
)
from hami_sandbox.kubelet.pod import Object

_log = logging.getLogger(__name__)

#: Answers of a container's device plugins: envs, mounts, devices, annotations, cdi_devices.
RunOptions = AllocateResponse

UNEXPECTED = "UnexpectedAdmissionError"
#: Longest path of a socket, in bytes.
_LONGEST = 107


class DeviceManager:
    """Serves on kubelet's sockets in a folder between `start` and `stop`."""

    def __init__(
        self,
        kubelet_dir: Path,
        *,
        active_pods: Callable[[], frozenset[str]],
        sources_ready: Callable[[], bool] = lambda: True,
        stop_grace: float = STOP_GRACE,
    ) -> None:
        """`active_pods` returns the UIDs of all pods whose containers run or may still be created.

        A pod is active before it is admitted, and until its last container has ended. As long as
        the sources are not ready, because not all pods are known after a restart, no ids are
        freed.
        """
        self._layout = NodeLayout(kubelet_dir=kubelet_dir)
        self._active_pods = active_pods
        self._sources_ready = sources_ready
        self._allocations = Allocations()
        self._plugins = Plugins(stop_grace=stop_grace, save=self._save)
        #: Pods that were admitted, asked to be, or end.
        self._pods: dict[str, Pod] = {}
        self._admitting = ""
        #: Pods are admitted one after the other.
        self._turn = asyncio.Lock()
        #: By resource, the ids that the next containers of a pod may use again.
        self._reusing = ""
        self._reusable: dict[str, frozenset[str]] = {}
        self._running: frozenset[tuple[str, str]] = frozenset()
        self._servers: list[Any] = []

    async def start(self, running: Collection[tuple[str, str]] = ()) -> None:
        """Serve; `running`: pod UID and container of those that run from before a restart."""
        self._running = frozenset(running)
        plugins, resources = self._layout.device_plugins, self._layout.pod_resources_socket.parent
        for folder in (plugins, resources):
            folder.mkdir(mode=0o750, parents=True, exist_ok=True)
        self._load()
        remove_sockets(plugins)
        remove_sockets(resources)
        registering = register_handler(plugins, self._plugins.connected)
        listing = pod_resources.handler(
            pods=self._listed_pods,
            held=self._allocations.of,
            allocatable=self._plugins.inventory.healthy_devices,
        )
        await self._serve(self._layout.kubelet_socket, registering)
        await self._serve(self._layout.pod_resources_socket, listing)

    async def stop(self) -> None:
        servers, self._servers = self._servers, []
        for server in servers:
            await server.stop(None)
        await self._plugins.close()

    def add_handler(self, callback: Callable[[], None]) -> None:
        """Call this when capacity or allocatable may have changed."""
        self._plugins.add_handler(callback)

    def capacity(self) -> dict[str, int]:
        """Return all devices, healthy or not; 0 where a plugin has been away for too long."""
        return self._plugins.capacity()

    def allocatable(self) -> dict[str, int]:
        """Return the healthy devices, taken or not."""
        return self._plugins.allocatable()

    async def admit(self, pod: Object) -> None:
        """Give every container its devices; AdmissionError: the pod has failed.

        To be called for every pod that is to run, those that were admitted before a restart too.
        """
        admitted = Pod.of(pod)
        async with self._turn:
            self._pods[admitted.uid] = admitted
            self._admitting = admitted.uid
            try:
                for container in admitted.containers:
                    await self._allocate(admitted, container)
            except DevicesError as error:
                raise AdmissionError(
                    UNEXPECTED, f"Allocate failed due to {error}, which is unexpected"
                ) from error
            finally:
                self._admitting = ""

    def know(self, pod: Object) -> None:
        """Record a pod that is ending already: PodResources lists it as long as it is active."""
        known = Pod.of(pod)
        self._pods[known.uid] = known

    async def pre_start(self, uid: str, container: str) -> None:
        """Have the plugins prepare a start of a container; StartError: try again later."""
        pod = self._pods.get(uid)
        found = None if pod is None else pod.container(container)
        if pod is None or found is None:
            raise StartError(
                f"container {container} of pod {uid} was never admitted, or is deleted"
            )
        again = False
        try:
            for resource, count in found.limits.items():
                if count and self._is_device(resource):
                    await self._pre_start(uid, container, resource)
                    held = self._allocations.of(uid, container)
                    again |= uid in self._active_pods() and resource not in held
            if again:  # its plugin came after the pod
                async with self._turn:
                    await self._allocate(pod, found)
        except DevicesError as error:
            raise StartError(str(error)) from error

    def run_options(self, uid: str, container: str) -> RunOptions:
        """Return what the plugins answered for a container; empty where it has no devices."""
        return self._allocations.run_options(uid, container)

    # Allocation.

    async def _allocate(self, pod: Pod, container: Container) -> None:
        if self._reusing != pod.uid:
            self._reusing, self._reusable = pod.uid, {}
        await self._allocate_container(pod, container)
        for resource, allocated in self._allocations.of(pod.uid, container.name).items():
            reusable = self._reusable.get(resource, frozenset())
            # An init container leaves its ids to the others; a sidecar keeps its own.
            plain = container.kind is ContainerKind.INIT
            self._reusable[resource] = (
                reusable | allocated.ids if plain else reusable - allocated.ids
            )

    async def _allocate_container(self, pod: Pod, container: Container) -> None:
        looked = changed = False
        for resource, count in container.limits.items():
            if not self._is_device(resource):
                continue
            if not looked:
                self._forget()
                looked = True
            ids = await self._choose(pod.uid, container.name, resource, count)
            if not ids:
                continue
            answer = await self._plugins.find(resource).allocate(ids)
            allocated = AllocatedIds(self._by_numa(resource, ids), answer)
            self._allocations.insert(pod.uid, container.name, resource, allocated)
            changed = True
        if changed:
            self._save()

    async def _choose(self, uid: str, container: str, resource: str, count: int) -> frozenset[str]:
        """Return the ids that a container lacks."""
        allocated = self._allocations.of(uid, container).get(resource)
        held = allocated.ids if allocated else frozenset()
        if allocated and len(held) != count:
            raise DevicesError(
                f'pod "{uid}" container "{container}" changed request for resource "{resource}" '
                f"from {len(held)} to {count}"
            )
        if not self._sources_ready() and (uid, container) in self._running:
            return frozenset()
        # Health is checked first, so that no container starts on a device whose plugin is away,
        # even if the container had it already.
        healthy = self._plugins.inventory.healthy.get(resource)
        if healthy is None:
            raise DevicesError(f"cannot allocate unregistered device {resource}")
        if not healthy:
            raise DevicesError(
                f"no healthy devices present; cannot allocate unhealthy devices {resource}"
            )
        if not healthy >= held:
            raise DevicesError(
                "previously allocated devices are no longer healthy; "
                f"cannot allocate unhealthy devices {resource}"
            )
        if len(held) == count:
            return frozenset()
        return await allocations.choose(
            resource,
            count,
            healthy=healthy,
            taken=self._allocations.taken().get(resource, set()),
            reusable=self._reusable.get(resource, frozenset()),
            prefer=self._plugins.find(resource).preferred,
        )

    def _by_numa(self, resource: str, ids: Iterable[str]) -> Mapping[int, tuple[str, ...]]:
        found: dict[int, list[str]] = {}
        for id_ in ids:
            for node in self._plugins.inventory.numa_nodes(resource, id_) or (NO_NUMA_NODE,):
                found.setdefault(node, []).append(id_)
        return {node: tuple(those) for node, those in found.items()}

    async def _pre_start(self, uid: str, container: str, resource: str) -> None:
        endpoint = self._plugins.find(resource)
        if not endpoint.pre_start_required:
            return
        allocated = self._allocations.of(uid, container).get(resource)
        if allocated is None:
            raise DevicesError(
                f"no devices found allocated in local cache for pod {uid}, "
                f"container {container}, resource {resource}"
            )
        await endpoint.pre_start(allocated.ids)

    def _is_device(self, resource: str) -> bool:
        return resource in self._plugins.inventory.healthy or resource in self._allocations.taken()

    def _forget(self) -> None:
        """Free the ids of pods that are no longer active; the checkpoint keeps them for now."""
        if self._sources_ready():
            active = self._active_pods() | {self._admitting}
            self._allocations.keep(active)
            self._pods = {uid: pod for uid, pod in self._pods.items() if uid in active}

    # Sockets and checkpoint.

    async def _serve(self, socket: Path, handler: Any) -> None:
        if len(bytes(socket)) > _LONGEST:
            raise SandboxError(
                f"socket {socket}",
                f"its path has more than {_LONGEST} bytes",
                "put the sandbox into a folder with a shorter path",
            )
        server = grpc.server(socket, handler)
        await server.start()
        self._servers.append(server)

    def _listed_pods(self) -> list[Pod]:
        self._forget()
        active = self._active_pods()
        return [pod for pod in self._pods.values() if pod.uid in active]

    def _load(self) -> None:
        try:
            data = allocations.read_checkpoint(self._layout.checkpoint)
        except SandboxError as error:
            _log.warning(
                "cannot read the checkpoint, starting without allocations",
                extra={"error": str(error)},
            )
            return
        if data is not None:
            self._allocations.load(data.entries or [])
            self._plugins.expect(data.registered or ())

    def _save(self) -> None:
        path, healthy = self._layout.checkpoint, self._plugins.inventory.healthy
        try:
            allocations.write_checkpoint(path, self._allocations.entries(), healthy)
        except OSError as error:
            raise DevicesError(f'failed to write checkpoint file "{path.name}": {error}') from error
