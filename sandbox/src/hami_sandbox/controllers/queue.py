"""Keys of objects that want attention: each once, now or later, and never two at a time."""

from __future__ import annotations

import asyncio
from collections import OrderedDict

_FIRST, _LONGEST = 0.05, 10.0


class Queue:
    def __init__(self, *, first: float = _FIRST, longest: float = _LONGEST) -> None:
        self._first = first
        self._longest = longest
        self._ready: OrderedDict[str, None] = OrderedDict()
        self._later: dict[str, asyncio.TimerHandle] = {}
        self._failures: dict[str, int] = {}
        self._filled = asyncio.Event()

    def __len__(self) -> int:
        return len(self._ready) + len(self._later)

    def add(self, key: str) -> None:
        """Have it looked at, once more if that is going on just now."""
        timer = self._later.pop(key, None)
        if timer is not None:
            timer.cancel()
        self._ready[key] = None
        self._filled.set()

    def add_after(self, key: str, seconds: float) -> None:
        """Have it looked at in a while, unless that is going to happen before."""
        if key in self._ready:
            return
        loop = asyncio.get_running_loop()
        timer = self._later.get(key)
        if timer is not None:
            if timer.when() <= loop.time() + seconds:
                return
            timer.cancel()
        self._later[key] = loop.call_later(seconds, self.add, key)

    def add_failed(self, key: str) -> None:
        """Have it looked at again, later each time it fails."""
        failures = self._failures[key] = self._failures.get(key, 0) + 1
        self.add_after(key, min(self._first * 2 ** (failures - 1), self._longest))

    def succeeded(self, key: str) -> None:
        self._failures.pop(key, None)

    async def take(self) -> str:
        """Wait for a key."""
        while not self._ready:
            self._filled.clear()
            await self._filled.wait()
        key, _ = self._ready.popitem(last=False)
        return key
