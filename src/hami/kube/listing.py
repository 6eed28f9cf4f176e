"""A list that is being read, page by page, beside what is known already.

At the end of a list the objects that it lacks are deleted. With 100,000 objects that search takes
tens of milliseconds, so it is done in parts (`search`), between which other tasks run. The store
adds what it learns of in between to `candidates`.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Iterable, Sequence
from typing import Generic, TypeVar

from hami.kube.lister import T

#: Objects that are read, and UIDs that are searched for, without a pause: a millisecond's work.
_READ, _SEARCHED = 16, 4000
#: From here on "versions" are those of objects that a GET did not find, in the order of the GETs.
MISSING = sys.maxsize

Item = TypeVar("Item")


class Listing(Generic[T]):
    """A list that is being read."""

    def __init__(self, known: int, missing: int) -> None:
        #: The highest version known when the list began.
        self.known = known
        #: The newest GET then that did not find its object, as a version above MISSING.
        self.missing = missing
        #: The moment that the list shows.
        self.version = 0
        self.begin()

    def begin(self) -> None:
        """Forget the pages so far."""
        self.uids: set[str] = set()
        #: Whether every object could at least be identified.
        self.whole = True
        #: UID -> version and object, where a resync seems to know more than we do.
        self.newer: dict[str, tuple[int, T | None]] = {}
        #: UIDs of objects that do not decode.
        self.unreadable: set[str] = set()
        #: UID -> the later version that we know, and the object as a full list has it.
        self.older: dict[str, tuple[int, T | None]] = {}
        #: UIDs that we know and the list may lack; None: not searched for, so any may.
        self.candidates: set[str] | None = None

    def search(self, uids: Iterable[str]) -> None:
        """Take note of those UIDs that the list lacks."""
        self.candidates = self.candidates or set()
        self.candidates.update(uid for uid in uids if uid not in self.uids)

    @property
    def is_restored(self) -> bool:
        """Whether the list contradicts what was known before it began, not only later offers."""
        return self.version < self.known or any(
            at <= self.known or MISSING < at <= self.missing
            for uid, (at, _) in self.older.items()
            if uid in self.uids
        )


async def search(listing: Listing[T] | None, uids: Sequence[str]) -> None:
    """Search for UIDs that a list lacks, right before it ends."""
    assert listing is not None
    async for part in in_turns(uids, _SEARCHED):
        listing.search(part)


async def in_turns(items: Sequence[Item], size: int = _READ) -> AsyncIterator[Sequence[Item]]:
    """Yield the items in parts; other tasks run after each."""
    for first in range(0, len(items), size):
        yield items[first : first + size]
        await asyncio.sleep(0)
