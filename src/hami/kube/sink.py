"""What a reflector fills, and what it fills it with."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Set as AbstractSet
from typing import Generic, Protocol, TypeVar

import msgspec

from hami.wire import objects


class Kept(Protocol):
    """What we need to know of any object."""

    @property
    def uid(self) -> str: ...

    @property
    def metadata(self) -> objects.Metadata | None: ...


T = TypeVar("T", bound=Kept)
T_contra = TypeVar("T_contra", contravariant=True)


class Ignored(msgspec.Struct, frozen=True):
    """An object that exists and that we do not want; it is dropped where it was kept."""

    uid: str
    resource_version: int


#: Bytes of one object to the object, or to the fact that we do not want it; else WireError.
Decode = Callable[[bytes], T | Ignored]


class Sink(Protocol[T_contra]):
    """Kept equal to the server's state. Its methods are never called within one another."""

    def put(self, obj: T_contra) -> None:
        """Take an object that is new or has changed."""

    def drop(self, uid: str) -> None:
        """Forget an object; it may be unknown."""

    def retain(self, uids: AbstractSet[str]) -> None:
        """Forget every other object: a complete list has just been taken."""


class Tee(Generic[T]):
    """Several sinks that are told the same, in the order given."""

    def __init__(self, *sinks: Sink[T]) -> None:
        self._sinks = sinks

    def put(self, obj: T) -> None:
        for sink in self._sinks:
            sink.put(obj)

    def drop(self, uid: str) -> None:
        for sink in self._sinks:
            sink.drop(uid)

    def retain(self, uids: AbstractSet[str]) -> None:
        for sink in self._sinks:
            sink.retain(uids)
