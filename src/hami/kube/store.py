"""Objects of one kind by UID and version, with indexes and handlers.

A sink that keeps the objects, with indexes that are never behind.
An index is a function from an object to the values under which it is found (a pod's node, a
claim's card). Object, key and indexes change together, before any subscriber hears of it. An object
that is deleted and made anew under its name is two objects with one key: the newer one has it, and
the end of the older one takes nothing from it.

What a reflector fills, and what it fills it with.

Looking at objects without decoding them.
Of a hundred thousand pods few ask for a GPU. What decides that is found by searching the bytes for
a few words (`mentions`); identity and version are two fields (`meta`). Only what is wanted is then
decoded into its real type.

What a sink should hold, by version: the judgement behind a reflector, without any I/O.
Resource versions are one sequence of numbers for the whole server. The mirror keeps the version of
every wanted object, and with it answers what lists and events mean:

- An event at or below the version that we have of the object, or of a list taken since, is old.
- An event below the newest of its own stream is out of order: the stream is not to be trusted
  (`Disorder`). An event that this stream has sent before is a duplicate and harmless.
- A list that is taken while a stream runs (`Comparison`) is right about everything up to its own
  version. What it says beyond what the stream said up to there, the stream has swallowed: repaired.

An object whose bytes do not decode keeps the state that we know, until the next list.

Bytes of watched objects to what we keep of them.
In a large cluster few pods have a GPU. A pod whose bytes name nothing that we look for is never
decoded: two words of it are read, and it is gone.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Generic, Protocol, TypeVar

import msgspec

from hami.wire import codec, objects
from hami.wire import errors as wire_errors


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


class Kept(Protocol):
    """What we need to know of any object."""

    @property
    def uid(self) -> str: ...

    @property
    def metadata(self) -> objects.Metadata | None: ...


SinkT = TypeVar("SinkT", bound=Kept)
T_contra = TypeVar("T_contra", contravariant=True)


class Ignored(msgspec.Struct, frozen=True):
    """An object that exists and that we do not want; it is dropped where it was kept."""

    uid: str
    resource_version: int


#: Bytes of one object to the object, or to the fact that we do not want it; else WireError.
Decode = Callable[[bytes], SinkT | Ignored]


class Sink(Protocol[T_contra]):
    """Kept equal to the server's state. Its methods are never called within one another."""

    def put(self, obj: T_contra) -> None:
        """Take an object that is new or has changed."""

    def drop(self, uid: str) -> None:
        """Forget an object; it may be unknown."""

    def retain(self, uids: AbstractSet[str]) -> None:
        """Forget every other object: a complete list has just been taken."""


class Tee(Generic[SinkT]):
    """Several sinks that are told the same, in the order given."""

    def __init__(self, *sinks: Sink[SinkT]) -> None:
        self._sinks = sinks

    def put(self, obj: SinkT) -> None:
        for sink in self._sinks:
            sink.put(obj)

    def drop(self, uid: str) -> None:
        for sink in self._sinks:
            sink.drop(uid)

    def retain(self, uids: AbstractSet[str]) -> None:
        for sink in self._sinks:
            sink.retain(uids)


_VERSION_DIGITS = 20


class _Meta(codec.Object, frozen=True):
    uid: str | None = None
    resource_version: str | None = None


class _Identified(codec.Object, frozen=True):
    metadata: _Meta | None = None


class _Event(codec.Object, frozen=True):
    type: str = ""
    # Not a part of the line that was read: it would keep all of it in memory.
    object: msgspec.Raw = msgspec.Raw(b"null")


def decode_event(line: bytes) -> tuple[str, bytes]:
    """Return what happened, and the object's bytes."""
    event = codec.decode(line, _Event, what="watch event")
    return event.type, bytes(event.object)


def meta(raw: bytes) -> tuple[str, int]:
    """Return UID and resourceVersion of an object."""
    found = codec.decode(raw, _Identified, what="object").metadata
    if found is None or not found.uid:
        raise wire_errors.WireError("object", raw, "has no metadata.uid")
    return found.uid, raw_version(found.resource_version)


def raw_version(text: str | None) -> int:
    """Return a resourceVersion as the number that it is.

    Kubernetes long called them opaque; since 1.35 their order is promised, and it always held.
    """
    if not text or not text.isascii() or not text.isdigit() or len(text) > _VERSION_DIGITS:
        raise wire_errors.WireError("resourceVersion", text or "", "is not a whole number")
    return int(text)


def mentions(raw: bytes, needles: Sequence[bytes]) -> bool:
    """Return whether any of these words stands anywhere in the bytes."""
    return any(needle in raw for needle in needles)


_log = logging.getLogger(__name__)

KeptT = TypeVar("KeptT", bound=Kept)

#: How many of a stream's last events are remembered, to tell duplicates from disorder.
_REMEMBERED = 1024


class Stats(msgspec.Struct):
    """Counts since the start."""

    #: Full lists in pages, the periodic ones included.
    lists: int = 0
    #: Full lists by a watch that begins with one.
    watch_lists: int = 0
    #: Watches opened, without those.
    watches: int = 0
    #: Events of objects, bookmarks not counted.
    events: int = 0
    #: Objects seen and not wanted.
    ignored: int = 0
    #: Objects that did not decode.
    undecodable: int = 0
    #: Objects that the periodic list found different although the stream had passed that moment.
    repaired: int = 0
    #: Lists and watches that failed.
    errors: int = 0


class Disorder(Exception):  # noqa: N818 - it names what happened to the stream
    """The stream sent an event from before the newest one it had sent."""


class Comparison:
    """A list that is being read while a stream goes on."""

    def __init__(self) -> None:
        self.version = 0
        self.begin()

    def begin(self) -> None:
        """Forget the pages so far."""
        #: Every object of the list.
        self.listed: set[str] = set()
        #: Those of which it seems to know more than we do.
        self.newer: dict[str, tuple[int, bytes]] = {}
        #: Whether every object could at least be identified.
        self.whole = True


class Mirror(Generic[KeptT]):
    def __init__(self, *, decode: Decode[KeptT], sink: Sink[KeptT], kind: str) -> None:
        self.stats = Stats()
        self._decode = decode
        self._sink = sink
        self._kind = kind
        #: The wanted objects, by UID, at the version that the sink holds.
        self._known: dict[str, int] = {}
        #: Objects that are listed right now; None between lists.
        self._listed: set[str] | None = None
        self._whole = True
        #: Everything up to here is contained in what we know: events below are old.
        self._floor = 0
        #: Where a stream would go on: the newest version of any event, bookmark or list.
        self._position = 0
        #: The newest version that the present stream has sent.
        self._newest = 0
        #: The last events, of this stream and those before.
        self._recent: OrderedDict[tuple[str, int, bool], None] = OrderedDict()
        self._comparison: Comparison | None = None
        #: What events removed while a list is compared: UID to version.
        self._removed: dict[str, int] = {}

    @property
    def version(self) -> int:
        """Everything up to here is known; a stream goes on from here."""
        return self._position

    def __len__(self) -> int:
        return len(self._known)

    # A full list: what it says is the truth, whatever we knew.

    def begin_list(self) -> None:
        self._listed = set()
        self._whole = True
        self._comparison = None

    def listed(self, body: bytes) -> None:
        """Take one object of the list. Nothing is removed before the list is complete."""
        assert self._listed is not None
        found = self._read(body)
        if found is None:
            self._whole = False
            return
        uid, version, obj = found
        if isinstance(obj, Ignored):
            self.stats.ignored += 1
            self._listed.discard(uid)
            return
        self._listed.add(uid)
        if obj is not None and self._known.get(uid) != version:
            self._known[uid] = version
            self._sink.put(obj)

    def unlisted(self, body: bytes) -> None:
        """Take note that an object of the list was deleted while the list was being sent."""
        assert self._listed is not None
        found = self._identified(body)
        if found is not None:
            self._listed.discard(found[0])

    def end_list(self, version: int) -> None:
        """Remove what the list did not name, and start a new stream from its version."""
        assert self._listed is not None
        if self._whole:
            self._known = {uid: at for uid, at in self._known.items() if uid in self._listed}
            self._sink.retain(self._listed)
        self._listed = None
        self._comparison = None
        self._floor = self._position = version
        self._recent.clear()
        self.begin_stream()

    # A stream of events.

    def begin_stream(self) -> None:
        """Expect a new stream, which goes on after `version`."""
        self._newest = self._position

    def bookmark(self, version: int) -> None:
        if version < self._newest:
            raise Disorder(f"bookmark {version} after version {self._newest}")
        self._newest = version
        self._position = max(self._position, version)

    def event(self, body: bytes, *, deleted: bool) -> None:
        """Take one event; the sink is in step when this returns."""
        self.stats.events += 1
        found = self._identified(body) if deleted else self._read(body)
        if found is None:
            return
        uid, version, obj = found
        mark = (uid, version, deleted)
        if mark in self._recent:
            return
        if version < self._newest:
            raise Disorder(f"version {version} after version {self._newest}")
        self._newest = version
        self._position = max(self._position, version)
        self._recent[mark] = None
        if len(self._recent) > _REMEMBERED:
            self._recent.popitem(last=False)
        known = self._known.get(uid)
        if version <= self._floor or (known is not None and version <= known):
            return
        if deleted:
            self._remove(uid, version)
        elif isinstance(obj, Ignored):
            self.stats.ignored += 1
            self._remove(uid, version)
        elif obj is not None:
            self._known[uid] = version
            self._sink.put(obj)

    def _remove(self, uid: str, version: int) -> None:
        if self._comparison is not None:
            self._removed[uid] = version
        if self._known.pop(uid, None) is not None:
            self._sink.drop(uid)

    # A list beside a stream.

    def begin_comparison(self) -> Comparison:
        self._removed.clear()
        self._comparison = Comparison()
        return self._comparison

    def compare(self, comparison: Comparison, bodies: Sequence[bytes]) -> None:
        """Take a page of the list, and keep of it only what seems to be news."""
        for body in bodies:
            found = self._identified(body)
            if found is None:
                comparison.whole = False
                continue
            uid, version, _ = found
            comparison.listed.add(uid)
            known = self._known.get(uid, 0)
            if version <= known:
                continue
            obj = self._decoded(body)
            if isinstance(obj, Ignored):
                comparison.listed.discard(uid)
            if obj is not None and (known or not isinstance(obj, Ignored)):
                comparison.newer[uid] = version, body

    def differs(self, comparison: Comparison) -> bool:
        """Return whether the list says anything that the stream has not said yet."""
        return bool(comparison.newer) or any(
            self._known[uid] <= comparison.version for uid in self._known.keys() - comparison.listed
        )

    def end_comparison(self, comparison: Comparison) -> bool:
        """Put right what the list knows better; return False if it was overtaken by a full list."""
        if self._comparison is not comparison or self._listed is not None:
            return False
        self._comparison = None
        at = comparison.version
        for uid, (version, body) in comparison.newer.items():
            if self._removed.get(uid, 0) > at or version <= self._known.get(uid, 0):
                continue  # the stream knows of something later
            obj = self._decoded(body)
            if isinstance(obj, Ignored):
                self._repair(uid, "is not wanted any more")
                self._known.pop(uid, None)
                self._sink.drop(uid)
            elif obj is not None:
                self._repair(uid, "is newer")
                self._known[uid] = version
                self._sink.put(obj)
        if comparison.whole:
            for uid in [u for u in self._known.keys() - comparison.listed if self._known[u] <= at]:
                self._repair(uid, "is gone")
                del self._known[uid]
                self._sink.drop(uid)
            self._sink.retain(set(self._known))
        self._floor = max(self._floor, at)
        self._position = max(self._position, at)
        self._removed.clear()
        return True

    def _repair(self, uid: str, rule: str) -> None:
        self.stats.repaired += 1
        _log.warning(
            "an object %s, and the watch did not say so",
            rule,
            extra={"kind": self._kind, "uid": uid},
        )

    def _read(self, body: bytes) -> tuple[str, int, KeptT | Ignored | None] | None:
        """Return UID, version and the object; None for what cannot even be identified."""
        obj = self._decoded(body)
        if obj is None or not obj.uid:
            return self._identified(body)
        if isinstance(obj, Ignored):
            return obj.uid, obj.resource_version, obj
        try:
            version = raw_version(obj.metadata.resource_version if obj.metadata else None)
        except wire_errors.WireError as error:
            self._undecodable(body, error)
            return None
        return obj.uid, version, obj

    def _identified(self, body: bytes) -> tuple[str, int, None] | None:
        try:
            return (*meta(body), None)
        except wire_errors.WireError as error:
            self._undecodable(body, error)
            return None

    def _decoded(self, body: bytes) -> KeptT | Ignored | None:
        """Return the object; None if it does not decode, which is its own problem only."""
        try:
            return self._decode(body)
        except wire_errors.WireError as error:
            self._undecodable(body, error)
            return None

    def _undecodable(self, body: bytes, error: wire_errors.WireError) -> None:
        self.stats.undecodable += 1
        _log.warning(
            "an object does not decode, keeping what is known of it",
            extra={"kind": self._kind, "bytes": len(body), "error": str(error)},
        )


DecodedT = TypeVar("DecodedT")


def pods_with(needles: Iterable[str]) -> Decode[objects.Pod]:
    """Return a decoder that ignores pods in whose JSON none of these texts stands."""
    wanted = tuple(needle.encode() for needle in needles)

    def decode(body: bytes) -> objects.Pod | Ignored:
        if mentions(body, wanted):
            return codec.decode(body, objects.Pod, what="pod")
        return Ignored(*meta(body))

    return decode


def all_of(kind: type[DecodedT], what: str) -> Callable[[bytes], DecodedT]:
    """Return a decoder that keeps everything."""

    def decode(body: bytes) -> DecodedT:
        return codec.decode(body, kind, what=what)

    return decode
