"""Binds to one node, one after the other, in the order they came."""

from __future__ import annotations

import asyncio


class Turn:
    """The right to bind to a node until it is handed on."""

    def __init__(self, turns: Turns, node: str) -> None:
        self._turns = turns
        self._node = node
        self._done = False

    def hand_on(self) -> None:
        """Let the next in line go on; doing it twice does no harm."""
        if not self._done:
            self._done = True
            self._turns.end(self._node)


class Turns:
    def __init__(self) -> None:
        #: Node -> its lock, and how many hold it or wait for it.
        self._lines: dict[str, tuple[asyncio.Lock, int]] = {}

    async def wait(self, node: str) -> Turn:
        """Wait for one's turn. Whoever is cancelled has left the line."""
        lock, waiting = self._lines.get(node, (asyncio.Lock(), 0))
        self._lines[node] = (lock, waiting + 1)
        try:
            await lock.acquire()
        except BaseException:
            self._leave(node)
            raise
        return Turn(self, node)

    def waiting(self) -> int:
        """Return how many binds hold a turn or wait for one."""
        return sum(number for _, number in self._lines.values())

    def end(self, node: str) -> None:
        self._lines[node][0].release()
        self._leave(node)

    def _leave(self, node: str) -> None:
        lock, waiting = self._lines[node]
        if waiting == 1:
            del self._lines[node]
        else:
            self._lines[node] = (lock, waiting - 1)
