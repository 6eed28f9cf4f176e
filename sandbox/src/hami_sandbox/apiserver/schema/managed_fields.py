"""Owners of fields: metadata.managedFields."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from typing import Any

import msgspec

from hami_sandbox import api_objects
from hami_sandbox.apiserver.kinds import Kind
from hami_sandbox.apiserver.refusals import Object
from hami_sandbox.apiserver.schema import field_paths, schema
from hami_sandbox.apiserver.schema.field_paths import Path, Paths

APPLY, UPDATE = "Apply", "Update"
#: Fields that the server itself sets; they have no owner.
_UNOWNED = frozenset(
    ("f:metadata", f"f:{name}")
    for name in (
        *("name", "namespace", "creationTimestamp", "selfLink", "uid", "generation"),
        *("managedFields", "resourceVersion", "clusterName"),
    )
)
_TYPE = frozenset({"f:apiVersion", "f:kind"})
_MOST_WRITERS = 10
_ANCIENT = "ancient-changes"


class Manager(msgspec.Struct, frozen=True):
    """A field manager and its operation; one entry of the record each."""

    name: str
    operation: str
    subresource: str = ""
    # An applier is the same whatever version it applies; a writer has one entry for each.
    api_version: str = ""


class Entry(msgspec.Struct):
    paths: Paths
    api_version: str
    time: str | None


Owners = dict[Manager, Entry]


def tracked(
    kind: Kind,
    old: Object | None,
    new: Object,
    *,
    manager: str,
    operation: str = UPDATE,
    now: dt.datetime,
    subresource: str = "",
) -> Object:
    """Return `new` with its managedFields brought up to date after an ordinary write.

    Neither object is changed. The writer may edit the record: the record in `new` counts, and
    `[{}]` drops it; without one the old record stays.
    """
    before = without_record(old) if old else {}
    after = without_record(new)
    owners = _record_to_start_from(old, new, subresource)
    if old is not None and not owners:
        return after  # the record was dropped on purpose
    changes = field_paths.difference(schema.of(kind), before, after)
    take_away(owners, changes.added | changes.modified | changes.removed)
    who = Manager(manager, operation, subresource, kind.api_version)
    gained = kept(kind, changes.added | changes.modified, subresource)
    if gained:
        had = owners[who].paths if who in owners else frozenset()
        owners[who] = Entry(had | gained, kind.api_version, api_objects.stamp(now))
    return with_record(after, _capped(owners))


def read(obj: Object | None) -> Owners:
    """Return the record of an object; invalid entries are left out."""
    found: Owners = {}
    record = (obj or {}).get("metadata", {}).get("managedFields") or ()
    for entry in record:
        if not isinstance(entry, dict) or entry.get("operation") not in {APPLY, UPDATE}:
            continue
        version = str(entry.get("apiVersion", ""))
        who = Manager(
            str(entry.get("manager", "")),
            entry["operation"],
            str(entry.get("subresource", "")),
            "" if entry["operation"] == APPLY else version,
        )
        paths = field_paths.decode(entry.get("fieldsV1"))
        had = found[who].paths if who in found else frozenset()
        found[who] = Entry(paths | had, version, entry.get("time"))
    return found


def before_first_apply(kind: Kind, live: Object | None) -> Owners:
    """Return the owners of an object without a record: one manager owns all of it."""
    if live is None:
        return {}
    found = field_paths.difference(schema.of(kind), {}, without_record(live))
    paths = kept(kind, found.added | found.modified, "")
    metadata = live["metadata"]
    who = Manager("before-first-apply", UPDATE, "", kind.api_version)
    return {who: Entry(paths, kind.api_version, metadata.get("creationTimestamp"))}


def without_record(obj: Object) -> Object:
    """Return the object without its record, sharing everything else."""
    metadata = dict(obj.get("metadata") or {})
    metadata.pop("managedFields", None)
    return {**obj, "metadata": metadata}


def with_record(obj: Object, owners: Owners) -> Object:
    """Return the object with this record, in the order of the API server."""
    ordered = sorted(
        owners.items(),
        key=lambda each: (each[0].operation, each[1].time or "", each[0].name),
    )
    record = [_written(who, entry) for who, entry in ordered if entry.paths]
    if not record:
        return obj
    return {**obj, "metadata": {**obj["metadata"], "managedFields": record}}


def take_away(owners: Owners, paths: set[Path] | Paths) -> None:
    """Take fields from all owners; an owner without fields is dropped."""
    for who, entry in tuple(owners.items()):
        left = entry.paths - paths
        if not left:
            del owners[who]
        elif len(left) != len(entry.paths):
            owners[who] = Entry(left, entry.api_version, entry.time)


def kept(kind: Kind, paths: set[Path] | Paths, subresource: str) -> Paths:
    """Leave out fields without an owner, and those that this path cannot change."""
    other = ""
    if subresource == "status":
        other = "f:spec"
    elif not subresource and kind.has_status:
        other = "f:status"
    return frozenset(
        path
        for path in paths
        if path[:2] not in _UNOWNED
        and path[0] not in _TYPE
        and path[0] != other
        and path != ("f:metadata",)
    )


def _record_to_start_from(old: Object | None, new: Object, subresource: str) -> Owners:
    given = new.get("metadata", {}).get("managedFields")
    if given is not None and not subresource:
        if given == [{}] or (given == [] and old):
            return {}
        if old and given == old.get("metadata", {}).get("managedFields"):
            return read(old)
        if found := read(new):
            return found
    return read(old)


def _written(who: Manager, entry: Entry) -> Mapping[str, Any]:
    written: Object = {
        "manager": who.name,
        "operation": who.operation,
        "apiVersion": entry.api_version,
    }
    if entry.time:
        written["time"] = entry.time
    written |= {"fieldsType": "FieldsV1", "fieldsV1": field_paths.encode(entry.paths)}
    if who.subresource:
        written["subresource"] = who.subresource
    return written


def _capped(owners: Owners) -> Owners:
    """Join the oldest writers into one entry, so that the record stays small."""
    writers = [who for who in owners if who.operation == UPDATE]
    if len(writers) <= _MOST_WRITERS:
        return owners
    writers.sort(key=lambda who: (owners[who].time or "", who.name))
    joined = writers[: len(writers) - _MOST_WRITERS + 1]
    paths: Paths = frozenset().union(*(owners[who].paths for who in joined))
    newest = owners[joined[-1]]
    left = {who: entry for who, entry in owners.items() if who not in joined}
    left[Manager(_ANCIENT, UPDATE, "", newest.api_version)] = Entry(
        paths, newest.api_version, newest.time
    )
    return left
