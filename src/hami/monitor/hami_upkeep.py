"""What HAMi's containers need of a monitor, every five seconds: priorities, and a broom.

Each region is answered by itself: one that cannot be read or written is counted and left alone.
Folders are removed only when the API server's list of this node's pods does not have their pod, and
nothing in them has changed for a while. Only HAMi's: what is ours the agent removes.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from typing import NoReturn

from hami.monitor import feedback, hami_files
from hami.monitor.feedback import Standing
from hami.monitor.hami_files import Folder
from hami.monitor.pods import Pods
from hami.monitor.readings import Readings
from hami.monitor.rounds import INTERVAL
from hami.monitor.unreadable import Unreadable
from hami.node.layout import NodeLayout

_log = logging.getLogger(__name__)


class HamiUpkeep:
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
        for folder, told in feedback.decide(standings).items():
            said = standings[folder]
            changes = {
                name: getattr(told, name) if getattr(told, name) != getattr(said, name) else None
                for name in ("recent_kernel", "utilization_switch")
            }
            if any(value is not None for value in changes.values()):
                with self._unreadable.concerning(f"region {folder.path.name}"):
                    path = hami_files.cache_of(folder.path)
                    if path is not None:
                        hami_files.write(path, **changes)

    async def sweep(self) -> None:
        """Remove what pods left behind that are gone."""
        if not self._pods.synced:
            return  # nobody has said yet which pods there are
        for folder in hami_files.folders(self._layout):
            if self._pods.get(folder.key.uid) is None:
                await self._clear(folder)

    async def _clear(self, folder: Folder) -> None:
        with self._unreadable.concerning(f"folder {folder.path.name}"):
            older_than = self._now() - self._keep_for
            # A thread, because a container may have filled it with anything.
            if await asyncio.to_thread(hami_files.clear, folder.path, older_than=older_than):
                _log.info(
                    "removed the folder of a pod that is gone",
                    extra={"pod_uid": folder.key.uid, "container": folder.key.container},
                )
