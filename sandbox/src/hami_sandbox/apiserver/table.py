"""The objects of one kind: as they are, as they were, and word of their changes."""

from __future__ import annotations

import bisect
from collections.abc import Callable, Iterator

from hami_sandbox.apiserver.history import Change, History
from hami_sandbox.apiserver.stored import Stored, key_of

_AFTER_SLASH = "0"  # the character after "/": the end of a namespace's keys


class State:
    """All objects of a kind at one moment, in the order of their keys."""

    __slots__ = ("_keys", "_objects", "revision")

    def __init__(self, keys: list[str], objects: dict[str, Stored], revision: int) -> None:
        self._keys = keys
        self._objects = objects
        self.revision = revision

    def items(self, namespace: str = "", start: str = "") -> Iterator[tuple[str, Stored]]:
        """Yield keys and objects of one namespace, or of all, from a key on."""
        keys = self._keys
        first, last = self._range(namespace)
        if start:
            first = max(first, bisect.bisect_left(keys, start))
        for index in range(first, last):
            key = keys[index]
            yield key, self._objects[key]

    def count(self, namespace: str = "", start: str = "") -> int:
        """Return how many objects there are from a key on."""
        first, last = self._range(namespace)
        if start:
            first = max(first, bisect.bisect_left(self._keys, start))
        return max(0, last - first)

    def _range(self, namespace: str) -> tuple[int, int]:
        if not namespace:
            return 0, len(self._keys)
        return (
            bisect.bisect_left(self._keys, f"{namespace}/"),
            bisect.bisect_left(self._keys, f"{namespace}{_AFTER_SLASH}"),
        )


class Table:
    """The present, the history, and who wants to be woken when something changes."""

    def __init__(self, bound: int, begins: int = 0) -> None:
        self.history = History(bound, begins)
        self._keys: list[str] = []
        self._objects: dict[str, Stored] = {}
        self._wakers: set[Callable[[], None]] = set()

    def __len__(self) -> int:
        return len(self._keys)

    def get(self, namespace: str, name: str) -> Stored | None:
        return self._objects.get(key_of(namespace, name))

    def put(self, stored: Stored) -> Change:
        """Store a new version of an object."""
        key = stored.key
        old = self._objects.get(key)
        if old is None:
            bisect.insort(self._keys, key)
        self._objects[key] = stored
        return self._changed(Change(stored.revision, key, old, stored))

    def remove(self, key: str, revision: int) -> Change:
        old = self._objects.pop(key)
        del self._keys[bisect.bisect_left(self._keys, key)]
        return self._changed(Change(revision, key, old, None))

    def load(self, objects: list[Stored]) -> None:
        """Begin with these objects; they have no history."""
        self._objects = {stored.key: stored for stored in objects}
        self._keys = sorted(self._objects)

    def now(self, revision: int) -> State:
        """Return the present. It is read before the next write, and not kept."""
        return State(self._keys, self._objects, revision)

    def past(self, revision: int) -> State | None:
        """Return the state at a version; None if that is forgotten.

        It is the present with everything that happened since taken back.
        """
        history = self.history
        if revision < history.forgotten:
            return None
        later = history.since(history.position(revision))
        if not later:
            return State(self._keys, self._objects, revision)
        objects = dict(self._objects)
        for change in reversed(later or ()):
            if change.old is None:
                objects.pop(change.key, None)
            else:
                objects[change.key] = change.old
        return State(sorted(objects), objects, revision)

    def wake(self, waker: Callable[[], None]) -> None:
        """Call this after each change from now on."""
        self._wakers.add(waker)

    def let_sleep(self, waker: Callable[[], None]) -> None:
        self._wakers.discard(waker)

    @property
    def watched(self) -> bool:
        """Whether anybody wants to be woken."""
        return bool(self._wakers)

    def wake_all(self) -> None:
        for waker in self._wakers:
            waker()

    def _changed(self, change: Change) -> Change:
        self.history.add(change)
        self.wake_all()
        return change
