"""A sink that keeps the objects, with indexes that are never behind.

An index is a function from an object to the values under which it is found (a pod's node, a
claim's card). Object, key and indexes change together, before any subscriber hears of it. An object
that is deleted and made anew under its name is two objects with one key: the newer one has it, and
the end of the older one takes nothing from it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from typing import Generic, Protocol, TypeVar


class Named(Protocol):
    @property
    def uid(self) -> str: ...

    @property
    def name(self) -> str: ...

    @property
    def namespace(self) -> str: ...


T = TypeVar("T", bound=Named)
Subscriber = Callable[[T | None, T | None], None]


def key_of(obj: Named) -> str:
    """Return `namespace/name`, or the name alone where there is no namespace."""
    return f"{obj.namespace}/{obj.name}" if obj.namespace else obj.name


class Cache(Generic[T]):
    def __init__(
        self, *, indexes: Mapping[str, Callable[[T], Iterable[str]]] | None = None
    ) -> None:
        self._objects: dict[str, T] = {}
        self._keys: dict[str, str] = {}
        self._functions = dict(indexes or {})
        #: Index name, value, and the objects in the order of their arrival (a dict is an
        #: ordered set).
        self._indexes: dict[str, dict[str, dict[str, None]]] = {n: {} for n in self._functions}
        #: The values of each object, as they were computed: what is removed is what was added.
        self._values: dict[str, dict[str, frozenset[str]]] = {}
        self._subscribers: list[Subscriber[T]] = []

    def __len__(self) -> int:
        return len(self._objects)

    def __iter__(self) -> Iterator[T]:
        return iter(list(self._objects.values()))

    def __contains__(self, uid: object) -> bool:
        return uid in self._objects

    def get(self, key: str) -> T | None:
        """Return the object by `namespace/name`, or by name where there is no namespace."""
        uid = self._keys.get(key)
        return self._objects.get(uid) if uid is not None else None

    def by_uid(self, uid: str) -> T | None:
        return self._objects.get(uid)

    def by_index(self, name: str, value: str) -> list[T]:
        """Return the objects that the index has under this value."""
        return [self._objects[uid] for uid in self._indexes[name].get(value, ())]

    def values(self, name: str) -> Collection[str]:
        """Return the values under which an index has anything."""
        return list(self._indexes[name])

    def subscribe(self, callback: Subscriber[T]) -> Callable[[], None]:
        """Call back with (old, new) after each change; None: was not, or is no more.

        Returns what ends the subscription.
        """
        self._subscribers.append(callback)
        return lambda: self._subscribers.remove(callback)

    # The sink.

    def put(self, obj: T) -> None:
        old = self._objects.get(obj.uid)
        # Computed first: if an index function fails, nothing has changed.
        values = {name: frozenset(of(obj)) for name, of in self._functions.items()}
        if old is not None:
            self._unlink(old)
        self._objects[obj.uid] = obj
        self._keys[key_of(obj)] = obj.uid
        self._values[obj.uid] = values
        for name, found in values.items():
            for value in found:
                self._indexes[name].setdefault(value, {})[obj.uid] = None
        self._tell(old, obj)

    def drop(self, uid: str) -> None:
        old = self._objects.get(uid)
        if old is not None:
            self._unlink(old)
            del self._objects[uid]
            self._tell(old, None)

    def retain(self, uids: AbstractSet[str]) -> None:
        for uid in [uid for uid in self._objects if uid not in uids]:
            self.drop(uid)

    def _unlink(self, obj: T) -> None:
        if self._keys.get(key_of(obj)) == obj.uid:
            del self._keys[key_of(obj)]
        for name, found in self._values.pop(obj.uid).items():
            index = self._indexes[name]
            for value in found:
                del index[value][obj.uid]
                if not index[value]:
                    del index[value]

    def _tell(self, old: T | None, new: T | None) -> None:
        for callback in list(self._subscribers):
            callback(old, new)
