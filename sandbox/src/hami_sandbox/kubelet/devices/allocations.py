"""The writer of kubelet's device checkpoint, byte for byte as Go writes it, and its own reader.

Device ids of containers: choose, record.
Which container of which pod holds which device ids, and by what answer of the plugin.
This is what kubelet keeps in its checkpoint. A container that has an entry has its devices for as
long as its pod lives, however often it starts.

Which device ids a container gets: those of the pod's init containers first, then free ones.
Among the free ones the plugin may have a preference (kubelet hears it only as far as they are
free). Whatever is left to kubelet goes by the order of a set, on which nobody can rely. NUMA nodes
do not count: that is kubelet's topology policy `none`.

The writer of kubelet's device checkpoint, byte for byte as Go writes it, and its own reader.
`hami.agent.kubelet.checkpoint` reads it for the agent and keeps less of it; what a kubelet needs
after its restart is all of it.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import (
    Awaitable,
    Callable,
    Collection,
    Container,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from collections.abc import Set as AbstractSet
from pathlib import Path

import msgspec

from hami.agent.kubelet import checkpoint
from hami.agent.kubelet.checkpoint import Data, File, PodEntry
from hami.agent.kubelet.grpc import MessageError
from hami.agent.kubelet.kubelet_api import Allocation, DeviceSpec, Mount
from hami.node import files
from hami.wire import codec, errors
from hami_sandbox.errors import SandboxError
from hami_sandbox.kubelet.devices.pods import DevicesError

_log = logging.getLogger(__name__)

#: kubelet's key for ids whose plugin names no NUMA node.
NO_NUMA_NODE = -1


@dataclasses.dataclass(frozen=True, slots=True)
class AllocatedIds:
    """The ids of one resource in one container."""

    by_numa: Mapping[int, tuple[str, ...]]
    answer: Allocation

    @property
    def ids(self) -> frozenset[str]:
        return frozenset(id_ for ids in self.by_numa.values() for id_ in ids)

    def numa_nodes(self, id_: str) -> tuple[int, ...]:
        return tuple(n for n, ids in self.by_numa.items() if n != NO_NUMA_NODE and id_ in ids)


class Allocations:
    def __init__(self) -> None:
        #: By pod UID, container and resource.
        self._pods: dict[str, dict[str, dict[str, AllocatedIds]]] = {}

    def insert(self, uid: str, container: str, resource: str, holding: AllocatedIds) -> None:
        self._pods.setdefault(uid, {}).setdefault(container, {})[resource] = holding

    def keep(self, uids: Container[str]) -> None:
        """Forget every other pod."""
        self._pods = {uid: held for uid, held in self._pods.items() if uid in uids}

    def of(self, uid: str, container: str) -> Mapping[str, AllocatedIds]:
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
            self.insert(
                entry.pod_uid, entry.container, entry.resource, AllocatedIds(by_numa, answer)
            )

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

    def _all(self) -> Iterator[tuple[str, str, str, AllocatedIds]]:
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


#: Go escapes these within texts, so that JSON can stand in HTML; elsewhere JSON has none of them.
_ESCAPED = {text.encode(): b"\\u%04x" % ord(text) for text in ("<", ">", "&", "\u2028", "\u2029")}
_MODE = 0o600
_REMEDY = "delete the file; containers that run keep what they have"


def write_checkpoint(
    path: Path, entries: Sequence[PodEntry], registered: Mapping[str, Collection[str]]
) -> None:
    """Put it into place in one step; OSError: it cannot be written."""
    data = Data(
        entries=list(entries) or None,  # a slice that nothing was appended to is null in Go
        registered={name: list(registered[name]) for name in sorted(registered)},
    )
    files.write_atomic(path, encode_checkpoint(data), mode=_MODE)


def encode_checkpoint(data: Data) -> bytes:
    content = msgspec.json.encode(File(data=data, checksum=checkpoint.of(data)))
    for plain, escaped in _ESCAPED.items():
        content = content.replace(plain, escaped)
    return content


def read_checkpoint(path: Path) -> Data | None:
    """Return what was written last; None: nothing yet. SandboxError: it is damaged."""
    what = f"checkpoint {path}"
    try:
        file = codec.decode(path.read_bytes(), File, what=what)
    except FileNotFoundError:
        return None
    except (OSError, errors.WireError) as error:
        raise SandboxError(what, str(error), _REMEDY) from error
    expected = checkpoint.of(file.data)
    if file.checksum != expected:
        raise SandboxError(what, f"has checksum {file.checksum}, not {expected}", _REMEDY)
    return file.data
