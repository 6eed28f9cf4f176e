"""Priorities between HAMi's containers, and removal of their old files.

Priorities between containers of HAMi's library: who has to wait, and whose limit counts.
HAMi's library and its monitor talk through two numbers of the region. `recent_kernel` is set to 2
at each launch; the monitor counts it down, so that what is above 0 has worked lately, and makes it
-1 to let a container wait. `utilization_switch` says whether the compute limit holds: a container
that is alone on its cards may have them whole.

Our own state files need nothing of the kind yet: libvgpu enforces no compute limit. When it does,
its processes will see each other through the policy's priority and the state's futex word.

What HAMi's containers need of a monitor, every five seconds: priorities, and a broom.
Each region is answered by itself: one that cannot be read or written is counted and left alone.
Folders are removed only when the API server's list of this node's pods does not have their pod, and
nothing in them has changed for a while. Only HAMi's: what is ours the agent removes.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from typing import NoReturn, TypeVar

import msgspec

from hami.monitor import hami_containers
from hami.monitor.audit import INTERVAL
from hami.monitor.containers import Unreadable
from hami.monitor.hami_containers import Folder
from hami.monitor.pods import Pods
from hami.monitor.usage import Readings
from hami.node.layout import NodeLayout

K = TypeVar("K")

_BLOCKED, _IDLE = -1, 0


class Standing(msgspec.Struct, frozen=True, kw_only=True):
    """What one container's region says now."""

    uuids: tuple[str, ...]
    #: 0 is high, 1 is low; a negative one never makes others wait.
    priority: int
    recent_kernel: int
    utilization_switch: int


class Told(msgspec.Struct, frozen=True, kw_only=True):
    """What it shall say."""

    recent_kernel: int
    utilization_switch: int


def decide(standings: Mapping[K, Standing]) -> dict[K, Told]:
    """Judge all containers of a node at once."""
    counted = {key: _counted_down(each.recent_kernel) for key, each in standings.items()}
    #: How many containers of a priority work on a card.
    active: dict[tuple[str, int], int] = {}
    for key, each in standings.items():
        if counted[key] > 0 and each.priority >= 0:
            for uuid in each.uuids:
                place = (uuid, each.priority)
                active[place] = active.get(place, 0) + 1
    return {key: _told(each, counted[key], active) for key, each in standings.items()}


def _counted_down(recent_kernel: int) -> int:
    return recent_kernel - 1 if recent_kernel > 0 else recent_kernel


def _told(each: Standing, recent_kernel: int, active: Mapping[tuple[str, int], int]) -> Told:
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
    return Told(recent_kernel=recent_kernel, utilization_switch=int(blocked or crowded))


_log = logging.getLogger(__name__)


class HamiFeedback:
    def __init__(
        self,
        layout: NodeLayout,
        *,
        readings: Readings,
        pods: Pods,
        unreadable: Unreadable,
        keep_for: float,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._layout = layout
        self._readings = readings
        self._pods = pods
        self._unreadable = unreadable
        self._keep_for = keep_for
        self._now = now

    async def run(self) -> NoReturn:
        while True:
            await self.sweep()
            self.answer()
            await asyncio.sleep(INTERVAL)

    def answer(self) -> None:
        """Tell each container whether it has to wait, and whether its compute limit holds."""
        found = {each.folder: each.region for each in self._readings.hami()}
        standings = {
            folder: Standing(
                uuids=tuple(device.uuid for device in region.devices),
                priority=region.priority,
                recent_kernel=region.recent_kernel,
                utilization_switch=region.utilization_switch,
            )
            for folder, region in found.items()
        }
        for folder, told in decide(standings).items():
            said = standings[folder]
            changes = {
                name: getattr(told, name) if getattr(told, name) != getattr(said, name) else None
                for name in ("recent_kernel", "utilization_switch")
            }
            if any(value is not None for value in changes.values()):
                with self._unreadable.concerning(f"region {folder.path.name}"):
                    path = hami_containers.cache_of(folder.path)
                    if path is not None:
                        hami_containers.write(path, **changes)

    async def sweep(self) -> None:
        """Remove what pods left behind that are gone."""
        if not self._pods.synced:
            return  # nobody has said yet which pods there are
        for folder in hami_containers.folders(self._layout):
            if self._pods.get(folder.key.uid) is None:
                await self._clear(folder)

    async def _clear(self, folder: Folder) -> None:
        with self._unreadable.concerning(f"folder {folder.path.name}"):
            older_than = self._now() - self._keep_for
            # A thread, because a container may have filled it with anything.
            if await asyncio.to_thread(hami_containers.clear, folder.path, older_than=older_than):
                _log.info(
                    "removed the folder of a pod that is gone",
                    extra={"pod_uid": folder.key.uid, "container": folder.key.container},
                )
