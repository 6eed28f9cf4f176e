"""What a sink should hold, by version: the judgement behind a reflector, without any I/O.

Resource versions are one sequence of numbers for the whole server. The mirror keeps the version of
every wanted object, and with it answers what lists and events mean:

- An event at or below the version that we have of the object, or of a list taken since, is old.
- An event below the newest of its own stream is out of order: the stream is not to be trusted
  (`Disorder`). An event that this stream has sent before is a duplicate and harmless.
- A list that is taken while a stream runs (`Comparison`) is right about everything up to its own
  version. What it says beyond what the stream said up to there, the stream has swallowed: repaired.

An object whose bytes do not decode keeps the state that we know, until the next list.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Sequence
from typing import Generic, TypeVar

import msgspec

from hami.kube import raw
from hami.kube.sink import Decode, Ignored, Kept, Sink
from hami.wire import errors

_log = logging.getLogger(__name__)

T = TypeVar("T", bound=Kept)

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


class Mirror(Generic[T]):
    def __init__(self, *, decode: Decode[T], sink: Sink[T], kind: str) -> None:
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

    def _read(self, body: bytes) -> tuple[str, int, T | Ignored | None] | None:
        """Return UID, version and the object; None for what cannot even be identified."""
        obj = self._decoded(body)
        if obj is None or not obj.uid:
            return self._identified(body)
        if isinstance(obj, Ignored):
            return obj.uid, obj.resource_version, obj
        try:
            version = raw.version(obj.metadata.resource_version if obj.metadata else None)
        except errors.WireError as error:
            self._undecodable(body, error)
            return None
        return obj.uid, version, obj

    def _identified(self, body: bytes) -> tuple[str, int, None] | None:
        try:
            return (*raw.meta(body), None)
        except errors.WireError as error:
            self._undecodable(body, error)
            return None

    def _decoded(self, body: bytes) -> T | Ignored | None:
        """Return the object; None if it does not decode, which is its own problem only."""
        try:
            return self._decode(body)
        except errors.WireError as error:
            self._undecodable(body, error)
            return None

    def _undecodable(self, body: bytes, error: errors.WireError) -> None:
        self.stats.undecodable += 1
        _log.warning(
            "an object does not decode, keeping what is known of it",
            extra={"kind": self._kind, "bytes": len(body), "error": str(error)},
        )
