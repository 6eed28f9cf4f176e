"""How long a container that ended waits before it is started again, as kubelet has it.

The first restart comes at once. Then the wait doubles each time, up to a limit, and begins anew
for a container that ran long enough.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec


class Waits(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds."""

    first: float = 10.0
    longest: float = 300.0
    #: A container that ran so long after its last restart is judged as if it had never crashed.
    forgiven_after: float = 600.0


class _Entry(msgspec.Struct):
    wait: float
    restarted_at: float


class CrashBackoff:
    def __init__(self, waits: Waits, *, now: Callable[[], float]) -> None:
        self._waits = waits
        self._now = now
        self._entries: dict[str, _Entry] = {}

    def wait(self, key: str, ended_at: float) -> float:
        """Return the length of the present wait of a container that ended; 0: start it now."""
        entry = self._entries.get(key)
        if entry is None or self._forgiven(entry, ended_at):
            return 0.0
        return entry.wait if self._now() - ended_at < entry.wait else 0.0

    def restarted(self, key: str, ended_at: float) -> None:
        """Take note that a container which had ended is started again."""
        entry = self._entries.get(key)
        if entry is None or self._forgiven(entry, ended_at):
            self._entries[key] = _Entry(self._waits.first, self._now())
            return
        entry.wait = min(entry.wait * 2, self._waits.longest)
        entry.restarted_at = self._now()

    def forget(self, key: str) -> None:
        self._entries.pop(key, None)

    def _forgiven(self, entry: _Entry, ended_at: float) -> bool:
        return ended_at - entry.restarted_at > self._waits.forgiven_after
