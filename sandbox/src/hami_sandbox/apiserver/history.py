"""What happened to the objects of one kind, as far back as is remembered."""

from __future__ import annotations

import bisect

from hami_sandbox.apiserver.stored import Stored

#: Forgetting happens in batches of this part of the bound: moving a list costs its length.
_SLACK = 8


class Change:
    """One write: what was there before, and after; nothing for what was created or deleted."""

    __slots__ = ("_gone", "key", "new", "old", "revision")

    def __init__(self, revision: int, key: str, old: Stored | None, new: Stored | None) -> None:
        self.revision = revision
        self.key = key
        self.old = old
        self.new = new
        self._gone: Stored | None = None

    @property
    def gone(self) -> Stored:
        """Return the last state of what is no longer there, under the version of its end."""
        if self._gone is None:
            assert self.old is not None
            self._gone = self.old.at(self.revision)
        return self._gone


class History:
    """Changes in the order of their versions, at most about `bound` of them."""

    def __init__(self, bound: int, begins: int = 0) -> None:
        self._bound = bound
        self._changes: list[Change] = []
        # How many changes were forgotten: positions count from the first change ever.
        self._dropped = 0
        #: The newest version of which nothing before is known.
        self.forgotten = begins

    def add(self, change: Change) -> None:
        self._changes.append(change)
        excess = len(self._changes) - self._bound
        if excess > self._bound // _SLACK:
            self._drop(excess)

    def forget(self, revision: int) -> None:
        """Forget everything up to this version."""
        if revision > self.forgotten:
            self._drop(self._index(revision))
            self.forgotten = revision

    def position(self, revision: int) -> int:
        """Return the position of the first change after this version."""
        return self._dropped + self._index(revision)

    @property
    def end(self) -> int:
        return self._dropped + len(self._changes)

    def since(self, position: int) -> list[Change] | None:
        """Return the changes from a position on; None if some of them are forgotten."""
        if position < self._dropped:
            return None
        return self._changes[position - self._dropped :]

    def _index(self, revision: int) -> int:
        return bisect.bisect_right(self._changes, revision, key=lambda change: change.revision)

    def _drop(self, count: int) -> None:
        if count:
            self.forgotten = max(self.forgotten, self._changes[count - 1].revision)
            del self._changes[:count]
            self._dropped += count
