"""Device ids of containers: choose, record, checkpoint.

kubelet keeps them in its checkpoint, byte for byte as Go writes it. A container that has an entry
keeps its devices for as long as its pod lives, however often it starts. A container gets the ids
of the pod's init containers first, then free ones; among the free ones the plugin may have a
preference. The rest goes by the order of a set, on which no program can rely. NUMA nodes do not
count: that is kubelet's topology policy `none`.
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
from hami.agent.kubelet.kubelet_api import AllocateResponse, DeviceSpec, Mount
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
    answer: AllocateResponse

    @property
    def ids(self) -> frozenset[str]:
        return frozenset(id_ for ids in self.by_numa.values() for id_ in ids)

    def numa_nodes(self, id_: str) -> tuple[int, ...]:
        return tuple(n for n, ids in self.by_numa.items() if n != NO_NUMA_NODE and id_ in ids)


class Allocations:
    def __init__(self) -> None:
        #: By pod UID, container and resource.
        self._pods: dict[str, dict[str, dict[str, AllocatedIds]]] = {}

    def insert(self, uid: str, container: str, resource: str, allocated: AllocatedIds) -> None:
        self._pods.setdefault(uid, {}).setdefault(container, {})[resource] = allocated

    def keep(self, uids: Container[str]) -> None:
        """Forget every other pod."""
        self._pods = {uid: held for uid, held in self._pods.items() if uid in uids}

    def of(self, uid: str, container: str) -> Mapping[str, AllocatedIds]:
        """Return the ids of a container, by resource."""
        return self._pods.get(uid, {}).get(container, {})

    def taken(self) -> dict[str, set[str]]:
        """Return all allocated ids, by resource."""
        taken: dict[str, set[str]] = {}
        for _, _, resource, allocated in self._all():
            taken.setdefault(resource, set()).update(allocated.ids)
        return taken

    def entries(self) -> list[PodEntry]:
        return [
            PodEntry(
                pod_uid=uid,
                container=container,
                resource=resource,
                # Go orders the keys of a map as texts.
                device_ids={
                    n: list(allocated.by_numa[n]) for n in sorted(allocated.by_numa, key=str)
                },
                answer=allocated.answer.encode(),
            )
            for uid, container, resource, allocated in self._all()
        ]

    def load(self, entries: list[PodEntry]) -> None:
        for entry in entries:
            try:
                answer = AllocateResponse.decode(entry.answer or b"")
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

    def run_options(self, uid: str, container: str) -> AllocateResponse:
        """Join the answers for a container; where two of them differ the first one counts."""
        envs: dict[str, str] = {}
        annotations: dict[str, str] = {}
        mounts: dict[str, Mount] = {}
        devices: dict[str, DeviceSpec] = {}
        cdi_devices: dict[str, None] = {}
        for allocated in self.of(uid, container).values():
            answer = allocated.answer
            envs = {**answer.envs, **envs}
            annotations = {**answer.annotations, **annotations}
            for mount in answer.mounts:
                mounts.setdefault(mount.container_path, mount)
            for device in answer.devices:
                devices.setdefault(device.container_path, device)
            cdi_devices.update(dict.fromkeys(answer.cdi_devices))
        return AllocateResponse(
            envs=envs,
            mounts=tuple(mounts.values()),
            devices=tuple(devices.values()),
            annotations=annotations,
            cdi_devices=tuple(cdi_devices),
        )

    def _all(self) -> Iterator[tuple[str, str, str, AllocatedIds]]:
        for uid, containers in self._pods.items():
            for container, resources in containers.items():
                for resource, allocated in resources.items():
                    yield uid, container, resource, allocated


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


#: Go escapes these within texts, for JSON inside HTML; elsewhere JSON has none of them.
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
