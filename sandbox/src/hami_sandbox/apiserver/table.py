"""The objects of one kind: now, earlier, and their changes."""

from __future__ import annotations

import bisect
from collections.abc import Callable, Iterator

import msgspec

from hami_sandbox.apiserver.refusals import Object

_encode = msgspec.json.Encoder().encode
_NAMES = ("kind", "apiVersion")


class Stored:
    """An object at a version. All readers share the content: to change it, copy it.

    An object inside a list does not name its kind, and one by itself does. The bytes are those
    inside a list; the names are put in front of them.
    """

    __slots__ = ("_bare", "_head", "object", "revision", "shown")

    def __init__(self, content: Object, revision: int) -> None:
        self.object = content
        self.revision = revision
        # The same object as another kind shows it, by that kind's group.
        self.shown: dict[str, Stored] | None = None
        self._bare: bytes | None = None
        self._head: bytes | None = None

    @property
    def bare(self) -> bytes:
        """Return the bytes without kind and version."""
        if self._bare is None:
            self._bare = _encode({k: v for k, v in self.object.items() if k not in _NAMES})
        return self._bare

    @property
    def whole(self) -> bytes:
        """Return the bytes with kind and version."""
        return join(self.head, self.bare)

    @property
    def head(self) -> bytes:
        if self._head is None:
            self._head = head(self.object["kind"], self.object["apiVersion"])
        return self._head

    @property
    def key(self) -> str:
        metadata = self.object["metadata"]
        return key_of(metadata.get("namespace") or "", metadata["name"])

    def at(self, revision: int) -> Stored:
        """Return the same content under a later version, as the last state of a deleted object."""
        metadata = {**self.object["metadata"], "resourceVersion": str(revision)}
        return Stored({**self.object, "metadata": metadata}, revision)


def key_of(namespace: str, name: str) -> str:
    """Return the key in a table; its order is that of lists, and namespaces are together."""
    return f"{namespace}/{name}"


def head(kind: str, api_version: str) -> bytes:
    return _encode({"kind": kind, "apiVersion": api_version})


def join(names: bytes, bare: bytes) -> bytes:
    """Put the names in front of an object's other fields; it always has metadata."""
    return names[:-1] + b"," + bare[1:]


#: Forgetting happens in batches of this part of the bound: moving a list costs its length.
_SLACK = 8


class Change:
    """One write: what was there before, and after; nothing for what was created or deleted."""

    __slots__ = ("_removed", "key", "new", "old", "revision")

    def __init__(self, revision: int, key: str, old: Stored | None, new: Stored | None) -> None:
        self.revision = revision
        self.key = key
        self.old = old
        self.new = new
        self._removed: Stored | None = None

    @property
    def removed(self) -> Stored:
        """Return the last state of a deleted object, under the version of its deletion."""
        if self._removed is None:
            assert self.old is not None
            self._removed = self.old.at(self.revision)
        return self._removed


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
    """The present, the history, and the callbacks after changes."""

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
        """Whether a watch waits for changes."""
        return bool(self._wakers)

    def wake_all(self) -> None:
        for waker in self._wakers:
            waker()

    def _changed(self, change: Change) -> Change:
        self.history.add(change)
        self.wake_all()
        return change
