"""Scripted faults, per request and per watch stream."""

from __future__ import annotations

import asyncio
import dataclasses
import enum
import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from multidict import CIMultiDictProxy


@dataclasses.dataclass
class Recorded:
    """A request as it arrived."""

    method: str
    path: str
    query: Mapping[str, str]
    headers: CIMultiDictProxy[str]
    body: bytes

    @property
    def watches(self) -> bool:
        return self.query.get("watch") in ("1", "true")


class Lost(enum.Enum):
    """Where the connection breaks."""

    #: Nothing has been done.
    BEFORE = enum.auto()
    #: It has been done, and the answer never leaves.
    AFTER = enum.auto()


@dataclasses.dataclass
class Fault:
    """What happens to requests that match. Checked in the order of `api.fault` calls."""

    method: str = ""
    #: A part of the path.
    path: str = ""
    when: Callable[[Recorded], bool] | None = None
    #: How often; None: for ever.
    times: int | None = 1
    #: Answer with this status, doing nothing.
    status: int = 0
    reason: str = ""
    message: str = "scripted"
    retry_after: int | None = None
    headers: Mapping[str, str] = dataclasses.field(default_factory=dict)
    #: Break the connection.
    lost: Lost | None = None
    #: Never answer.
    hang: bool = False
    #: Wait for this before anything is done.
    gate: asyncio.Event | None = None
    #: Do it, and wait for this before answering.
    gate_after: asyncio.Event | None = None
    #: Called when a request is hit, before anything is done.
    on_hit: Callable[[], None] | None = None
    #: Answer 200 and a stream of these lines, nothing else.
    lines: Sequence[Mapping[str, Any]] | None = None
    hits: int = 0

    def takes(self, request: Recorded) -> bool:
        if self.times is not None and self.hits >= self.times:
            return False
        if self.method and self.method != request.method:
            return False
        if self.path not in request.path or (self.when and not self.when(request)):
            return False
        self.hits += 1
        if self.on_hit is not None:
            self.on_hit()
        return True


class Kind(enum.Enum):
    DROP = enum.auto()
    DUPLICATE = enum.auto()
    #: Send it after the one that follows.
    REORDER = enum.auto()
    #: Hold it and all that follow.
    DELAY = enum.auto()
    #: Send half of the line and break the connection.
    CUT = enum.auto()
    #: Send half of the line and end the stream properly.
    CUT_CLEANLY = enum.auto()
    #: End the stream properly before it.
    CLOSE = enum.auto()
    #: Send an ERROR event with `code` instead, and end.
    ERROR = enum.auto()


@dataclasses.dataclass
class StreamFault:
    """What happens to the events of a watch stream, bookmarks not counted."""

    kind: Kind
    #: The number of the event in its stream, from 0.
    at: int = 0
    path: str = ""
    times: int | None = 1
    seconds: float = 0.05
    code: int = 410
    hits: int = 0

    def takes(self, path: str, number: int) -> bool:
        if self.times is not None and self.hits >= self.times:
            return False
        if self.path not in path or number != self.at:
            return False
        self.hits += 1
        return True


class Storm:
    """Faults by chance, the same for the same seed."""

    def __init__(
        self,
        seed: int,
        *,
        events: Mapping[Kind, float],
        statuses: Sequence[int] = (),
        refused: float = 0.0,
        lost: float = 0.0,
    ) -> None:
        self._random = random.Random(seed)
        self._events = dict(events)
        self._statuses = list(statuses)
        self._refused = refused
        self._lost = lost
        self.counts: dict[str, int] = {}

    def event(self) -> StreamFault | None:
        drawn = self._random.random()
        for kind, chance in self._events.items():
            if drawn < chance:
                code = self._random.choice([410, 410, 500])
                self._count(kind.name)
                return StreamFault(kind, seconds=0.01 * self._random.random(), code=code)
            drawn -= chance
        return None

    def request(self) -> Fault | None:
        drawn = self._random.random()
        if self._statuses and drawn < self._refused:
            status = self._random.choice(self._statuses)
            self._count(str(status))
            reason = "Expired" if status == 410 else ""
            return Fault(status=status, reason=reason, retry_after=0 if status == 429 else None)
        if drawn < self._refused + self._lost:
            self._count("lost")
            return Fault(lost=self._random.choice([Lost.BEFORE, Lost.AFTER]))
        return None

    def _count(self, what: str) -> None:
        self.counts[what] = self.counts.get(what, 0) + 1
