"""Objects by UID, name and index, and the handlers of their changes.

An index is a function from an object to the values under which it is found (a pod's node, a
claim's card). Object, name and indexes change together, before any handler runs.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Generic, Protocol, TypeVar


class Kept(Protocol):
    """The fields that the store needs of any object that it keeps."""

    @property
    def uid(self) -> str: ...

    @property
    def name(self) -> str: ...

    @property
    def namespace(self) -> str: ...

    @property
    def version(self) -> int: ...


T = TypeVar("T", bound=Kept)
#: Called with (old, new) after each change: add is (None, new), delete is (old, None).
Handler = Callable[[T | None, T | None], None]
#: An object to the values under which an index finds it.
Index = Callable[[T], Iterable[str]]


def key_of(obj: Kept) -> str:
    """Return `namespace/name`, or the name alone where there is no namespace."""
    return f"{obj.namespace}/{obj.name}" if obj.namespace else obj.name


class Lister(Generic[T]):
    """The objects, with keys and indexes that change together with them, before any handler runs.

    Handlers are called in the order in which they were added. They must not await or change the
    store, and should not raise: an error is passed on, once all others have seen the change.
    """

    def __init__(self, indexes: Mapping[str, Index[T]] | None = None) -> None:
        self._objects: dict[str, T] = {}
        self._keys: dict[str, str] = {}
        self._functions = dict(indexes or {})
        #: Index name, value and UIDs in the order of their arrival (a dict is an ordered set).
        self._indexes: dict[str, dict[str, dict[str, None]]] = {n: {} for n in self._functions}
        #: The values of each object as they were computed: exactly these are removed.
        self._values: dict[str, dict[str, frozenset[str]]] = {}
        self._handlers: list[Handler[T]] = []

    def __len__(self) -> int:
        return len(self._objects)

    def __iter__(self) -> Iterator[T]:
        return iter(list(self._objects.values()))

    def __contains__(self, uid: object) -> bool:
        return uid in self._objects

    def get(self, uid: str) -> T | None:
        """Return the object with this UID."""
        return self._objects.get(uid)

    def by_key(self, key: str) -> T | None:
        """Return the object by `namespace/name`, or by name where there is no namespace."""
        uid = self._keys.get(key)
        return self._objects.get(uid) if uid is not None else None

    def by_index(self, name: str, value: str) -> list[T]:
        """Return the objects that the index has under this value."""
        return [self._objects[uid] for uid in self._indexes[name].get(value, ())]

    def index_values(self, name: str) -> Collection[str]:
        """Return the values under which an index has any object."""
        return list(self._indexes[name])

    def add_handler(self, handler: Handler[T]) -> None:
        """Call back after each change, and at once with the present objects as adds."""
        for obj in self:
            handler(None, obj)
        self._handlers.append(handler)

    def put(self, obj: T) -> None:
        """Add an object, or replace the one with its UID."""
        uid = obj.uid
        old = self._objects.get(uid)
        if self._functions:
            self._index(obj)
        self._objects[uid] = obj
        if old is None:  # the name of an object never changes
            self._keys[key_of(obj)] = uid
        self._report(old, obj)

    def drop(self, uid: str) -> None:
        """Delete an object; an unknown UID changes nothing."""
        old = self._objects.pop(uid, None)
        if old is not None:
            key = key_of(old)
            if self._keys.get(key) == uid:
                del self._keys[key]
            self._unindex(uid)
            self._report(old, None)

    def _report(self, old: T | None, new: T | None) -> None:
        failure: Exception | None = None
        for handler in self._handlers:
            try:
                handler(old, new)
            except Exception as error:  # noqa: BLE001 - raised below: no other handler misses it
                failure = failure or error
        if failure is not None:
            raise failure

    def _index(self, obj: T) -> None:
        # Computed first: if an index function fails, nothing has changed.
        values = {name: frozenset(of(obj)) for name, of in self._functions.items()}
        self._unindex(obj.uid)
        self._values[obj.uid] = values
        for name, found in values.items():
            for value in found:
                self._indexes[name].setdefault(value, {})[obj.uid] = None

    def _unindex(self, uid: str) -> None:
        for name, found in self._values.pop(uid, {}).items():
            index = self._indexes[name]
            for value in found:
                del index[value][uid]
                if not index[value]:
                    del index[value]
