"""The device plugin for shares of cards: what kubelet asks, and who answers.

Which way Allocate goes is decided anew each time: what a container was promised stands in kubelet's
own record, so PreStart serves both kinds whatever the node does by now.
"""

from __future__ import annotations

import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

from hami.agent import late_binding
from hami.agent.cards.device_ids import ListedDevice
from hami.agent.errors import RefusalError
from hami.agent.instruments import Instruments
from hami.agent.kubelet.device_list import DeviceList
from hami.agent.kubelet.kubelet_api import Allocation
from hami.agent.late_binding import Binder
from hami.agent.lock_binding import LockBinding
from hami.agent.preferring import Preferring

_log = logging.getLogger(__name__)

LATE, LOCK = "late", "lock"


class VgpuPlugin:
    pre_start_required = True

    def __init__(
        self,
        resource: str,
        *,
        is_late: Callable[[], Awaitable[bool]],
        binder: Binder,
        lock_binding: LockBinding,
        preferring: Preferring,
        preferred_allocation: bool,
        instruments: Instruments,
    ) -> None:
        self.resource = resource
        self.preferred_allocation = preferred_allocation
        self._is_late = is_late
        self._binder = binder
        self._lock_binding = lock_binding
        self._preferring = preferring
        self._instruments = instruments
        #: What kubelet is told; whoever knows of a change sets it.
        self.list: DeviceList[ListedDevice] = DeviceList()

    def devices(self) -> AsyncIterator[Sequence[ListedDevice]]:
        return self.list.watch()

    async def allocate(self, requests: Sequence[tuple[str, ...]]) -> list[Allocation]:
        mode = LATE if await self._is_late() else LOCK
        begin = time.monotonic()
        try:
            if mode == LATE:
                answers = [late_binding.allocation(late_binding.new_token()) for _ in requests]
            else:
                answers = await self._lock_binding.allocate(requests)
        except RefusalError:
            self._instruments.allocated(mode, "refused", time.monotonic() - begin)
            raise
        self._instruments.allocated(mode, "ok", time.monotonic() - begin)
        _log.info("Allocate", extra={"mode": mode, "device_ids": [list(one) for one in requests]})
        return answers

    async def pre_start(self, device_ids: frozenset[str]) -> None:
        begin = time.monotonic()
        try:
            record = await self._binder.pre_start(device_ids)
        except RefusalError:
            self._instruments.pre_started("refused", time.monotonic() - begin)
            raise
        took = time.monotonic() - begin
        self._instruments.pre_started("ok", took)
        pod = f"{record.namespace}/{record.name}"
        _log.info(
            "PreStart",
            extra={"device_ids": sorted(device_ids), "pod": pod, "ms": round(took * 1000, 1)},
        )

    async def preferred(
        self, available: Sequence[str], must_include: Sequence[str], size: int
    ) -> tuple[str, ...]:
        return self._preferring.prefer(available, must_include, size)
