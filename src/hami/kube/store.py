"""Objects of one kind by UID and version: what exists, and what is news.

The store alone decides which objects exist (docs/designs/005-informer.md). It does no I/O. Resource
versions are one sequence of numbers for the whole server:

- An event or an answer to our own request counts if its version is above the one kept for its UID.
  The versions of the last 20,000 deleted UIDs are kept, too: a late answer does not bring a deleted
  object back, and an object that re-enters a selector returns.
- A list is right up to its own version. An object that is newer than the list stays.
- A name has one object: a newer UID with a known name is the end of the older one.
- An event below the newest of its own stream is out of order (`Disorder`): the stream is not
  trusted any more. An event that was sent before is a duplicate and harmless.
- A list beside a stream (a resync) that knows more than the stream repairs the store, counted.
- A list older than what was known before it began shows a restore from a backup: a new epoch.

An object whose bytes do not decode keeps the state that we know, until the next list.
"""

from __future__ import annotations

import logging
import sys
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence

from hami.kube import listwatch
from hami.kube.lister import Index, Lister, T, key_of
from hami.kube.listing import MISSING, Listing
from hami.wire import errors as wire_errors

_log = logging.getLogger(__name__)

#: Deleted UIDs whose version is kept. Late answers to our own requests arrive within seconds.
DELETED_KEPT = 20_000
#: Events of a stream that are remembered, to know duplicates from disorder.
_EVENTS_KEPT = 1024

#: Bytes of an object to what is kept of it, or None where it is not wanted; raises WireError.
Read = Callable[[bytes], T | None]


class Disorder(Exception):  # noqa: N818 - it names what happened to the stream
    """The stream sent an event from before the newest one that it had sent."""


class Unreadable:
    """In place of an object whose bytes do not decode."""


class Store(Lister[T]):
    """The lister, kept equal to the server's state by lists, events and offers."""

    def __init__(
        self,
        read: Read[T],
        *,
        kind: str,
        indexes: Mapping[str, Index[T]] | None = None,
        selected: bool = False,
    ) -> None:
        super().__init__(indexes)
        #: The objects' kind, for logs.
        self.kind = kind
        self.stats = listwatch.Stats()
        #: Whether a full list has been read since the start.
        self.synced = False
        #: A stream continues here: the newest version of any event, bookmark or list.
        self.version = 0
        self._read_object = read
        #: Whether objects may leave and re-enter the selection: then an offer cannot add one.
        self._selected = selected
        #: UID -> version, in the order of deletion.
        self._deleted: dict[str, int] = {}
        #: The version of the last list: unknown objects at or below it are deleted.
        self._floor = 0
        #: How often versions began again.
        self.epoch = 0
        #: Unreadable in the list that began this epoch: any version of them counts.
        self._unversioned: set[str] = set()
        #: The highest version seen in this epoch, offers included.
        self._highest = 0
        self._missing_at = MISSING
        #: The newest version that the present stream has sent.
        self._newest = 0
        #: The last events, of this stream and those before.
        self._recent: OrderedDict[tuple[str, int, bool], None] = OrderedDict()
        self._listing: Listing[T] | None = None
        self._resync: Listing[T] | None = None

    def is_deleted(self, uid: str) -> bool:
        """Return whether an object is known to have been deleted, and not to have returned."""
        return uid in self._deleted and uid not in self._objects

    # A full list.

    def begin_list(self) -> None:
        """Expect a full list; a resync under way is void."""
        self._listing = Listing(self._highest, self._missing_at)
        self._resync = None

    def restart_list(self) -> None:
        """Forget the pages so far, but not what was known before the list began."""
        assert self._listing is not None
        self._listing.begin()

    def listed(self, body: bytes) -> None:
        """Take one object of the list. Nothing is deleted before the list is complete."""
        assert self._listing is not None
        found = self._read(body)
        if found is None:
            self._listing.whole = False
            return
        uid, version, obj = found
        if obj is None:
            self.stats.ignored += 1
            self._listing.uids.discard(uid)
            return
        self._listing.uids.add(uid)
        if isinstance(obj, Unreadable):
            self._listing.unreadable.add(uid)
            return
        known, older = self._known(uid, obj), self._listing.older
        if version < known or uid in older:  # a WatchList may show it again, changed
            older[uid] = older.get(uid, (known, None))[0], obj
        # The same version with another content is of another history: etcd was restored.
        if version > known or (version == known and self._objects.get(uid) != obj):
            self._add(obj)

    def unlisted(self, body: bytes) -> None:
        """Take note that an object of the list was deleted while the list was being sent."""
        assert self._listing is not None
        found = self._identify(body)
        if found is not None:
            self._listing.uids.discard(found[0])

    def end_list(self, version: int) -> None:
        """Delete what the list lacks and is not newer; expect a stream from its version."""
        listing, self._listing, self._resync = self._listing, None, None
        assert listing is not None
        listing.version = version
        if restored := listing.is_restored:
            self._begin_epoch(listing)
        if listing.whole:
            # An offer does not show that an object left the selection; the stream shows its return.
            certain = restored or self._selected
            for obj in self._candidates(listing):
                if obj.uid not in listing.uids and (certain or obj.version <= version):
                    self._delete(obj.uid, min(obj.version, version))
        self.synced = True
        self._floor = self.version = version
        self._highest = max(self._highest, version)
        self._recent.clear()
        self.begin_stream()

    def _begin_epoch(self, listing: Listing[T]) -> None:
        _log.warning(
            "the API server is older than what was known, forgetting versions",
            extra={"kind": self.kind, "version": listing.version, "known": listing.known},
        )
        self.epoch += 1
        self._deleted.clear()
        self._highest = listing.version
        self._unversioned = listing.unreadable & self._objects.keys()
        for uid, (_, obj) in listing.older.items():
            if uid in listing.uids and obj is not None:
                self._add(obj)

    # A stream of events.

    def begin_stream(self) -> None:
        """Expect a new stream, which continues after `version`."""
        self._newest = self.version

    def bookmark(self, version: int) -> None:
        """Take note that everything up to this version was sent."""
        if version < self._newest:
            raise Disorder(f"bookmark {version} after version {self._newest}")
        self._advance(version)

    def event(self, body: bytes, *, deleted: bool) -> None:
        """Take one event; all handlers have run when this returns."""
        self.stats.events += 1
        found = self._identify(body) if deleted else self._read(body)
        if found is None:
            return
        uid, version, obj = found
        if (mark := (uid, version, deleted)) in self._recent:
            return
        if version < self._newest:
            raise Disorder(f"version {version} after version {self._newest}")
        self._advance(version)
        self._recent[mark] = None
        if len(self._recent) > _EVENTS_KEPT:
            self._recent.popitem(last=False)
        if version <= self._floor:
            return
        if deleted:
            # Of a newer version we can know only by an offer, which does not see the selection.
            self._delete(uid, version)
        else:
            self._apply(uid, version, obj)

    def _advance(self, version: int) -> None:
        self._newest = version
        self.version = max(self.version, version)
        self._highest = max(self._highest, version)

    # Answers to our own requests.

    def offer(self, body: bytes) -> None:
        """Take an object as our own GET or PATCH returned it, by the rule for events."""
        found = self._read(body)
        if found is None:
            return
        uid, version, obj = found
        self._highest = max(self._highest, version)
        if uid in self._objects or not (self._selected or version <= self._floor):
            self._apply(uid, version, obj)

    def offer_missing(self, uid: str) -> None:
        """Take note that our own GET did not find the object.

        Its UID returns only with a restore, which a list that begins after this shows.
        """
        self._missing_at += 1
        self._remember_deleted(uid, self._missing_at)
        self.drop(uid)

    # A list beside a stream.

    def begin_resync(self) -> Listing[T]:
        """Expect a list while the stream continues."""
        self._resync = Listing(self._highest, self._missing_at)
        return self._resync

    def compare(self, resync: Listing[T], bodies: Sequence[bytes]) -> None:
        """Take a page of the list, and keep of it only what seems to be news."""
        for body in bodies:
            found = self._identify(body)
            if found is None:
                resync.whole = False
                continue
            uid, version, _ = found
            resync.uids.add(uid)
            known = self._known(uid)
            if version < known:
                resync.older[uid] = known, None
                continue
            obj, kept = self._decode(body), self._objects.get(uid)
            # What an offer showed before the stream may end again by an older event of the stream.
            if version == known <= self.version and kept is not None:
                # The same version with another content is of another history: etcd was restored.
                if obj != kept and not isinstance(obj, Unreadable):
                    resync.older[uid] = known, None
                continue
            if obj is None:
                resync.uids.discard(uid)
            elif not isinstance(obj, Unreadable) and version < (known := self._known(uid, obj)):
                resync.older[uid] = known, None  # a later object has its name
                continue
            if not isinstance(obj, Unreadable) and (obj is not None or uid in self._objects):
                resync.newer[uid] = version, obj

    def differs(self, resync: Listing[T]) -> bool:
        """Return whether the list knows anything that the stream has not sent yet."""
        return bool(resync.newer) or any(self._missing(resync))

    def end_resync(self, resync: Listing[T]) -> bool:
        """Repair what the list knows better; return False if a full list has overtaken it."""
        if self._resync is not resync or self._listing is not None:
            return False
        self._resync = None
        for uid, (version, obj) in resync.newer.items():
            known = self._known(uid, obj)
            if version < known or (version == known and uid in self._objects):
                continue  # the stream knows it by now
            if obj is not None:
                self._repair(uid, "is newer")
                self._add(obj)
            elif uid in self._objects:
                self._repair(uid, "is not wanted any more")
                self._delete(uid, version)
        if resync.whole:
            for obj in list(self._missing(resync)):
                self._repair(obj.uid, "is deleted")
                self._delete(obj.uid, min(obj.version, resync.version))
            # Only now: the end of an object that the list may lack is still to come.
            self._floor = max(self._floor, resync.version)
        self.version = max(self.version, resync.version)
        self._highest = max(self._highest, resync.version)
        return True

    def _missing(self, resync: Listing[T]) -> Iterator[T]:
        # An offer, ahead of the stream, does not show that an object left the selection.
        ahead = self.version if self._selected else sys.maxsize
        return (
            obj
            for obj in self._candidates(resync)
            if obj.uid not in resync.uids and not resync.version < obj.version <= ahead
        )

    def _candidates(self, listing: Listing[T]) -> list[T]:
        """Return the objects that a list may lack."""
        if listing.candidates is None:
            return list(self)
        return [obj for uid in listing.candidates if (obj := self._objects.get(uid)) is not None]

    def _repair(self, uid: str, change: str) -> None:
        self.stats.repaired += 1
        _log.warning(
            "the watch has not sent a change, repairing",
            extra={"kind": self.kind, "uid": uid, "change": change},
        )

    # Versions.

    def _known(self, uid: str, obj: T | None = None) -> int:
        """Return the version kept for a UID, deleted ones included, or of a newer namesake."""
        if uid in self._unversioned:
            return 0
        kept = self._objects.get(uid)
        known = kept.version if kept is not None else self._deleted.get(uid, 0)
        if kept is None and obj is not None:
            namesake = self.by_key(key_of(obj))
            if namesake is not None:
                known = max(known, namesake.version)
        return known

    def _apply(self, uid: str, version: int, obj: T | Unreadable | None) -> None:
        if obj is None:
            self.stats.ignored += 1
            if version > self._known(uid):
                self._delete(uid, version)
        elif not isinstance(obj, Unreadable) and version > self._known(uid, obj):
            self._add(obj)

    def _add(self, obj: T) -> None:
        self._unversioned.discard(obj.uid)
        self._highest = max(self._highest, obj.version)  # also if its list never ends
        if obj.uid not in self._objects:
            namesake = self.by_key(key_of(obj))
            if namesake is not None:
                self._delete(namesake.uid, obj.version)
            self._deleted.pop(obj.uid, None)
            for listing in (self._listing, self._resync):
                if listing is not None and listing.candidates is not None:
                    listing.candidates.add(obj.uid)
        self.put(obj)

    def _delete(self, uid: str, version: int) -> None:
        # Unknown objects are remembered during a resync only: its list may still name them.
        self._unversioned.discard(uid)
        if uid in self._objects or self._resync is not None:
            self._remember_deleted(uid, version)
            self.drop(uid)

    def _remember_deleted(self, uid: str, version: int) -> None:
        self._deleted[uid] = max(version, self._deleted.pop(uid, 0))
        if len(self._deleted) > DELETED_KEPT:
            del self._deleted[next(iter(self._deleted))]

    # Bytes.

    def _read(self, body: bytes) -> tuple[str, int, T | Unreadable | None] | None:
        """Return UID, version and object; None for bytes that cannot even be identified."""
        obj = self._decode(body)
        if obj is None or isinstance(obj, Unreadable) or not (obj.uid and obj.version):
            found = self._identify(body)
            return (*found[:2], obj) if found is not None else None
        return obj.uid, obj.version, obj

    def _identify(self, body: bytes) -> tuple[str, int, None] | None:
        try:
            return (*listwatch.identity(body), None)
        except wire_errors.WireError as error:
            self._count_undecodable(body, error)
            return None

    def _decode(self, body: bytes) -> T | Unreadable | None:
        """Return what is kept of an object; bytes that do not decode harm only this object."""
        try:
            return self._read_object(body)
        except wire_errors.WireError as error:
            self._count_undecodable(body, error)
            return Unreadable()

    def _count_undecodable(self, body: bytes, error: wire_errors.WireError) -> None:
        self.stats.undecodable += 1
        _log.warning(
            "an object does not decode, keeping what is known of it",
            extra={"kind": self.kind, "bytes": len(body), "error": str(error)},
        )
