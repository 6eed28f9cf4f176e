"""Containers that HAMi's plugin started: usage, priorities, removal of old files.

HAMi's library has a region in `<hook>/vgpu/containers/<pod UID>_<container>/*.cache`, in a folder
that the container's processes can write. It is opened without following links, read and written by
offset, and never mapped: a process that cuts off a mapped file kills its reader.

HAMi's library and a monitor exchange two numbers of the region. `recent_kernel` is set to 2 at each
launch; the monitor counts it down, so that a container above 0 has worked lately, and sets -1 to
let a container wait. `utilization_switch` is 1 where the compute limit holds: a container that is
alone on its cards may use all of their time. libvgpu enforces no compute limit yet, so our own
state files have no such numbers.
"""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
import stat
import struct
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import NoReturn, TypeVar

import msgspec

from hami.monitor.containers import Container, Key, Unreadable
from hami.monitor.pods import Pods
from hami.monitor.usage import CardUsage, ContainerUsage
from hami.node import files
from hami.node.layout import NodeLayout, is_uid
from hami.node.state_reading import UnreadableError
from hami.wire import hami_region
from hami.wire.hami_region import Region

_log = logging.getLogger(__name__)

K = TypeVar("K")

#: Seconds between two rounds of feedback, as in HAMi's monitor.
INTERVAL = 5.0
#: Values of recent_kernel.
_BLOCKED, _IDLE = -1, 0
#: The priority of a container whose spec says nothing.
_USUAL = 1
#: Entries of a folder that are read; HAMi's library makes two.
_MOST_ENTRIES = 64
_MOST_FILES = 2
_FIELD = struct.Struct("<i")
_WRITE_FLAGS = os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY


class Folder(msgspec.Struct, frozen=True):
    """The folder of one container."""

    key: Key
    path: Path


class HamiContainer(msgspec.Struct, frozen=True):
    """A container that HAMi's library runs in."""

    folder: Folder
    region: Region


class HamiContainers:
    """Reads the regions of HAMi's containers."""

    def __init__(self, layout: NodeLayout, pods: Pods, unreadable: Unreadable) -> None:
        self._layout = layout
        self._pods = pods
        self._unreadable = unreadable

    def read(self) -> Iterator[HamiContainer]:
        """Yield the containers that have a region and a pod."""
        for folder in folders(self._layout):
            if self._pods.get(folder.key.uid) is None:
                continue
            with self._unreadable.concerning(f"HAMi region {folder.path.name}"):
                path = region_path(folder.path)
                if path is not None:
                    yield HamiContainer(folder, read_region(path))

    def container(self, found: HamiContainer) -> Container | None:
        """Return the container with its names and shares; None: it has ended."""
        key = found.folder.key
        pod = self._pods.get(key.uid)
        if pod is None or self._pods.over(key, age=0):
            return None
        return Container(
            key=key,
            namespace=pod.namespace,
            pod=pod.name,
            shares=tuple(device.share for device in found.region.devices),
            allocation_ids=(),
            limited=True,
        )


def usage_of(region: Region) -> ContainerUsage:
    """Return the usage of a container; of a card that is there twice, the first counts."""
    cards: dict[str, CardUsage] = {}
    for device in region.devices:
        if device.uuid not in cards:
            cards[device.uuid] = CardUsage(
                used=device.used,
                context=device.context,
                module=device.module,
                data=device.data,
                offset=device.offset,
                compute=device.core_used,
                limit=device.limit,
            )
    return ContainerUsage(cards=cards, last_kernel_time=region.last_kernel_time, pids=region.pids)


class HamiFeedback:
    """Writes priorities into regions, and removes the folders of deleted pods.

    Each region is handled by itself: one that cannot be read or written is counted and left alone.
    A folder is removed only if the API server's list of this node's pods does not have its pod, and
    nothing in it has changed for a while. Our own folders are removed by the agent.
    """

    def __init__(
        self,
        layout: NodeLayout,
        *,
        containers: HamiContainers,
        pods: Pods,
        unreadable: Unreadable,
        keep_for: float,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._layout = layout
        self._containers = containers
        self._pods = pods
        self._unreadable = unreadable
        self._keep_for = keep_for
        self._now = now

    async def run(self) -> NoReturn:
        while True:
            await self.remove_old()
            self.update()
            await asyncio.sleep(INTERVAL)

    def update(self) -> None:
        """Write into each region whether its container waits, and whether its limit holds."""
        found = {each.folder: each.region for each in self._containers.read()}
        states = {folder: self._state(folder.key, region) for folder, region in found.items()}
        for folder, wanted in decide(states).items():
            present = states[folder]
            changes = {
                name: value if (value := getattr(wanted, name)) != getattr(present, name) else None
                for name in ("recent_kernel", "utilization_switch")
            }
            if any(value is not None for value in changes.values()):
                with self._unreadable.concerning(f"HAMi region {folder.path.name}"):
                    path = region_path(folder.path)
                    if path is not None:
                        write_region(path, **changes)

    def _state(self, key: Key, region: Region) -> RegionState:
        """Return the state of a region, with no more than its pod's spec and grant say.

        The container can write the region: it could claim a priority or a card that is not its own,
        and let the containers of others wait.
        """
        pod = self._pods.get(key.uid)
        cards = pod.cards if pod is not None else frozenset()
        priority = region.priority
        if cards and pod is not None and priority >= 0:
            priority = max(priority, pod.priorities.get(key.container, _USUAL) or 0)
        return RegionState(
            uuids=tuple(d.uuid for d in region.devices if not cards or d.uuid in cards),
            priority=priority,
            recent_kernel=region.recent_kernel,
            utilization_switch=region.utilization_switch,
        )

    async def remove_old(self) -> None:
        """Remove the folders of deleted pods."""
        if not self._pods.synced:
            return  # it is not known yet which pods there are
        for folder in folders(self._layout):
            if self._pods.get(folder.key.uid) is None:
                await self._remove(folder)

    async def _remove(self, folder: Folder) -> None:
        with self._unreadable.concerning(f"folder {folder.path.name}"):
            older_than = self._now() - self._keep_for
            # A thread, because a container may have filled it with anything.
            if await asyncio.to_thread(remove_folder, folder.path, older_than=older_than):
                _log.info(
                    "removed the folder of a deleted pod",
                    extra={"pod_uid": folder.key.uid, "container": folder.key.container},
                )


class RegionState(msgspec.Struct, frozen=True, kw_only=True):
    """The numbers of one container's region that priorities depend on."""

    uuids: tuple[str, ...]
    #: 0 is high, 1 is low; a negative one never makes others wait.
    priority: int
    recent_kernel: int
    utilization_switch: int


class Feedback(msgspec.Struct, frozen=True, kw_only=True):
    """The numbers that a region gets."""

    recent_kernel: int
    utilization_switch: int


def decide(states: Mapping[K, RegionState]) -> dict[K, Feedback]:
    """Decide for all containers of a node at once."""
    counted = {key: _counted_down(each.recent_kernel) for key, each in states.items()}
    #: Working containers by card and priority.
    active: dict[tuple[str, int], int] = {}
    for key, each in states.items():
        if counted[key] > 0 and each.priority >= 0:
            for uuid in each.uuids:
                at = (uuid, each.priority)
                active[at] = active.get(at, 0) + 1
    return {key: _feedback(each, counted[key], active) for key, each in states.items()}


def _counted_down(recent_kernel: int) -> int:
    return recent_kernel - 1 if recent_kernel > 0 else recent_kernel


def _feedback(
    each: RegionState, recent_kernel: int, active: Mapping[tuple[str, int], int]
) -> Feedback:
    own = set(each.uuids)
    blocked = any(
        number > 0 and uuid in own and priority < each.priority
        for (uuid, priority), number in active.items()
    )
    crowded = any(active.get((uuid, each.priority), 0) > 1 for uuid in own)
    if blocked and recent_kernel >= 0:
        recent_kernel = _BLOCKED
    elif not blocked and recent_kernel < 0:
        recent_kernel = _IDLE
    return Feedback(recent_kernel=recent_kernel, utilization_switch=int(blocked or crowded))


def folders(layout: NodeLayout) -> Iterator[Folder]:
    """Yield the folders whose names are those of a pod's container; others are left alone."""
    try:
        names = sorted(os.listdir(layout.hami_containers))  # noqa: PTH208 - only names
    except OSError:
        return  # HAMi's plugin has never run here
    for name in names:
        uid, separator, container = name.partition("_")
        if separator and container and is_uid(uid):
            yield Folder(Key(uid, container), layout.hami_containers / name)


def region_path(folder: Path) -> Path | None:
    """Return the path of a folder's region; None: no process has made one yet."""
    names = []
    with os.scandir(folder) as entries:
        for count, entry in enumerate(entries):
            if count == _MOST_ENTRIES:
                raise UnreadableError("folder", f"{folder} has more than {_MOST_ENTRIES} entries")
            if "libvgpu.so" in entry.name or entry.name.endswith(".cache"):
                names.append(entry.name)
    if len(names) > _MOST_FILES:
        raise UnreadableError("folder", f"{folder} has more than {_MOST_FILES} files of a library")
    return next((folder / name for name in sorted(names) if name.endswith(".cache")), None)


def read_region(path: Path) -> Region:
    with files.untrusted(path) as (handle, size):
        version = hami_region.version_of(files.read_at(handle, hami_region.MARK_SIZE, 0), size)
        head = _exactly(handle, version.head, 0)
        offset, length = version.tail
        tail = _exactly(handle, length, offset)
        used = hami_region.processes_used(tail)
        processes = _exactly(handle, used * version.process.size, version.head)
        return hami_region.decode(version, head, processes, tail)


def write_region(path: Path, *, recent_kernel: int | None, utilization_switch: int | None) -> None:
    """Write the two numbers that HAMi's library reads from its monitor; None leaves one alone."""
    try:
        handle = os.open(path, _WRITE_FLAGS)
    except OSError as error:
        raise files.UntrustedFileError(f"{path} cannot be opened: {error.strerror}") from error
    try:
        status = os.fstat(handle)
        if not stat.S_ISREG(status.st_mode):
            raise files.UntrustedFileError(f"{path} is no regular file")
        mark = files.read_at(handle, hami_region.MARK_SIZE, 0)
        version = hami_region.version_of(mark, status.st_size)
        numbers = {"recent_kernel": recent_kernel, "utilization_switch": utilization_switch}
        for name, value in numbers.items():
            if value is not None:
                os.pwrite(handle, _FIELD.pack(value), version.offset(name))
    finally:
        os.close(handle)


def remove_folder(folder: Path, *, older_than: float) -> bool:
    """Remove a folder that has not changed since a Unix time; return False if it has."""
    status = folder.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_mtime > older_than:
        return False
    shutil.rmtree(folder)  # follows no link, also none that replaces a folder meanwhile
    return True


def _exactly(handle: int, size: int, offset: int) -> bytes:
    data = files.read_at(handle, size, offset)
    if len(data) < size:
        raise UnreadableError("truncated", "was cut off while it was read")
    return data
