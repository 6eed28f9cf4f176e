"""Device ids of containers: choose, record.

Which container of which pod holds which device ids, and by what answer of the plugin.
This is what kubelet keeps in its checkpoint. A container that has an entry has its devices for as
long as its pod lives, however often it starts.

Which device ids a container gets: those of the pod's init containers first, then free ones.
Among the free ones the plugin may have a preference (kubelet hears it only as far as they are
free). Whatever is left to kubelet goes by the order of a set, on which nobody can rely. NUMA nodes
do not count: that is kubelet's topology policy `none`.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Awaitable, Callable, Container, Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet

from hami.agent.kubelet.checkpoint import PodEntry
from hami.agent.kubelet.grpc import MessageError
from hami.agent.kubelet.kubelet_api import Allocation, DeviceSpec, Mount
from hami_sandbox.kubelet.devices.pods import DevicesError

_log = logging.getLogger(__name__)

#: kubelet's key for ids whose plugin names no NUMA node.
NO_NUMA_NODE = -1


@dataclasses.dataclass(frozen=True, slots=True)
class Holding:
    """The ids of one resource in one container."""

    by_numa: Mapping[int, tuple[str, ...]]
    answer: Allocation

    @property
    def ids(self) -> frozenset[str]:
        return frozenset(id_ for ids in self.by_numa.values() for id_ in ids)

    def numa_nodes(self, id_: str) -> tuple[int, ...]:
        return tuple(n for n, ids in self.by_numa.items() if n != NO_NUMA_NODE and id_ in ids)


class Book:
    def __init__(self) -> None:
        #: By pod UID, container and resource.
        self._pods: dict[str, dict[str, dict[str, Holding]]] = {}

    def insert(self, uid: str, container: str, resource: str, holding: Holding) -> None:
        self._pods.setdefault(uid, {}).setdefault(container, {})[resource] = holding

    def keep(self, uids: Container[str]) -> None:
        """Forget every other pod."""
        self._pods = {uid: held for uid, held in self._pods.items() if uid in uids}

    def of(self, uid: str, container: str) -> Mapping[str, Holding]:
        """Return what a container holds, by resource."""
        return self._pods.get(uid, {}).get(container, {})

    def taken(self) -> dict[str, set[str]]:
        """Return all ids that somebody holds, by resource."""
        taken: dict[str, set[str]] = {}
        for _, _, resource, holding in self._all():
            taken.setdefault(resource, set()).update(holding.ids)
        return taken

    def entries(self) -> list[PodEntry]:
        return [
            PodEntry(
                pod_uid=uid,
                container=container,
                resource=resource,
                # Go orders the keys of a map as texts.
                device_ids={n: list(holding.by_numa[n]) for n in sorted(holding.by_numa, key=str)},
                answer=holding.answer.encode(),
            )
            for uid, container, resource, holding in self._all()
        ]

    def load(self, entries: list[PodEntry]) -> None:
        for entry in entries:
            try:
                answer = Allocation.decode(entry.answer or b"")
            except MessageError as error:
                _log.warning(
                    "an entry of the checkpoint has no answer that can be read",
                    extra={"uid": entry.pod_uid, "container": entry.container, "error": str(error)},
                )
                continue
            by_numa = {node: tuple(ids or ()) for node, ids in (entry.device_ids or {}).items()}
            self.insert(entry.pod_uid, entry.container, entry.resource, Holding(by_numa, answer))

    def run_options(self, uid: str, container: str) -> Allocation:
        """Join the answers for a container; where two of them differ the first one counts."""
        envs: dict[str, str] = {}
        annotations: dict[str, str] = {}
        mounts: dict[str, Mount] = {}
        devices: dict[str, DeviceSpec] = {}
        cdi_devices: dict[str, None] = {}
        for holding in self.of(uid, container).values():
            answer = holding.answer
            envs = {**answer.envs, **envs}
            annotations = {**answer.annotations, **annotations}
            for mount in answer.mounts:
                mounts.setdefault(mount.container_path, mount)
            for device in answer.devices:
                devices.setdefault(device.container_path, device)
            cdi_devices.update(dict.fromkeys(answer.cdi_devices))
        return Allocation(
            envs=envs,
            mounts=tuple(mounts.values()),
            devices=tuple(devices.values()),
            annotations=annotations,
            cdi_devices=tuple(cdi_devices),
        )

    def _all(self) -> Iterator[tuple[str, str, str, Holding]]:
        for uid, containers in self._pods.items():
            for container, resources in containers.items():
                for resource, holding in resources.items():
                    yield uid, container, resource, holding


#: Takes the available ids, those that must be among the chosen, and how many there are to be.
Prefer = Callable[[AbstractSet[str], AbstractSet[str], int], Awaitable[AbstractSet[str]]]


async def choose(
    resource: str,
    size: int,
    *,
    healthy: AbstractSet[str],
    taken: AbstractSet[str],
    reusable: AbstractSet[str],
    prefer: Prefer,
) -> frozenset[str]:
    """Return as many ids as asked for; DevicesError: there are too few."""
    chosen: set[str] = set()

    def take(ids: Iterable[str]) -> bool:
        for id_ in ids:
            if len(chosen) == size:
                break
            chosen.add(id_)
        return len(chosen) == size

    if take(reusable):
        return frozenset(chosen)
    available = healthy - taken - chosen
    lacking = size - len(chosen)
    if len(available) < lacking:
        raise DevicesError(
            f"requested number of devices unavailable for {resource}. "
            f"Requested: {lacking}, Available: {len(available)}"
        )
    preferred = await prefer(available | chosen, frozenset(chosen), size)
    if not take(preferred & available):
        take(available)
    return frozenset(chosen)
