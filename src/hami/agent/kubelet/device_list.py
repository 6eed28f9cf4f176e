"""The list of devices that kubelet is told: every listener gets the newest, and no more than that.

Each list that kubelet is sent makes it write its checkpoint and the node's status. So what changes
within a moment goes out as one list, and a change that was taken back before that not at all.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Generic, TypeVar

D = TypeVar("D")

#: Seconds between two lists to one listener.
PAUSE = 0.2


class DeviceList(Generic[D]):
    """Before the first `set` listeners wait: no list is other than an empty one."""

    def __init__(self, *, pause: float = PAUSE) -> None:
        self._pause = pause
        self._devices: tuple[D, ...] | None = None
        self._changed = asyncio.Event()

    @property
    def devices(self) -> tuple[D, ...]:
        return self._devices or ()

    def set(self, devices: Sequence[D]) -> None:
        """Take another list, of devices that can be compared."""
        if self._devices is not None and tuple(devices) == self._devices:
            return
        self._devices = tuple(devices)
        # Whoever waits is woken once; whoever comes later waits for the next change.
        self._changed.set()
        self._changed = asyncio.Event()

    async def watch(self) -> AsyncIterator[tuple[D, ...]]:
        """Give the list, and again when it is another; never ends by itself."""
        told: tuple[D, ...] | None = None
        while True:
            while self._devices is None or self._devices == told:
                await self._changed.wait()
            told = self._devices
            yield told
            await asyncio.sleep(self._pause)
