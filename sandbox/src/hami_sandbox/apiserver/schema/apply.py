"""Server-side apply: merge one manager's fields into an object."""

from __future__ import annotations

import copy
import datetime as dt
import json
from collections.abc import Mapping
from typing import Any

from hami.vendors import config_file
from hami.vendors.config_file import ConfigError
from hami_sandbox import api_objects
from hami_sandbox.apiserver import refusals
from hami_sandbox.apiserver.kinds import Kind
from hami_sandbox.apiserver.refusals import Object, Refusal
from hami_sandbox.apiserver.schema import defaults, field_paths, managed_fields, schema
from hami_sandbox.apiserver.schema.field_paths import Path, Paths
from hami_sandbox.apiserver.schema.managed_fields import Entry, Manager, Owners


def applied(
    kind: Kind,
    live: Object | None,
    body: bytes,
    *,
    manager: str,
    force: bool,
    now: dt.datetime,
    subresource: str = "",
) -> Object:
    """Return the object after an apply; equal to `live` where nothing changes.

    metadata.resourceVersion and uid are as the body names them, or as they were.
    """
    patch = _decoded(kind, body)
    shape = schema.of(kind)
    who = Manager(manager, managed_fields.APPLY, subresource)
    owners = managed_fields.read(live) or managed_fields.before_first_apply(kind, live)
    before = managed_fields.without_record(live) if live else {}
    wanted = managed_fields.kept(kind, field_paths.owned(shape, patch), subresource)
    last = owners.pop(who, None)

    result = field_paths.merged(shape, before, patch)
    if last:
        dropped = _no_longer_wanted(last.paths, wanted, owners)
        if dropped:
            result = field_paths.pruned(shape, result, dropped)
    result = copy.deepcopy(result)
    schema.settle(kind, result)
    if not subresource:
        defaults.apply_defaults(kind, result, now=now)

    changes = field_paths.difference(shape, before, result)
    _refuse_conflicts(owners, changes.added | changes.modified, force=force)
    managed_fields.take_away(owners, changes.added | changes.modified | changes.removed)
    same = last is not None and last.paths == wanted and result == before
    time = last.time if last and same else api_objects.stamp(now)
    owners[who] = Entry(wanted, kind.api_version, time)
    return managed_fields.with_record(result, owners)


def _decoded(kind: Kind, body: bytes) -> Object:
    """Decode and check what is applied."""
    patch = _read(body)
    if not isinstance(patch, dict):
        raise refusals.bad_request("error decoding YAML: an object was expected")
    if not patch.get("apiVersion") or not patch.get("kind"):
        named = f"{patch.get('apiVersion') or '/'}, Kind={patch.get('kind') or ''}"
        raise refusals.bad_request(f"invalid object type: {named}")
    if (patch["apiVersion"], patch["kind"]) != (kind.api_version, kind.kind):
        raise refusals.bad_request(
            f"the object is {patch['apiVersion']}, Kind={patch['kind']}, but the path is that of "
            f"{kind.api_version}, Kind={kind.kind}"
        )
    metadata = patch.get("metadata")
    if isinstance(metadata, dict) and metadata.get("managedFields") is not None:
        raise refusals.bad_request("metadata.managedFields must be nil")
    patch = _without_nulls(patch)
    try:
        unknown = schema.settle(kind, copied := copy.deepcopy(patch))
    except schema.ShapeError as error:
        raise _untyped(kind, patch, str(error)) from None
    if unknown:
        raise _untyped(kind, patch, f".{unknown[0]}: field not declared in schema")
    # What only Go's types add (`status: {}`) was not applied.
    settled: Object = _as_applied(copied, patch)
    return settled


def _read(body: bytes) -> Any:
    """Read YAML, or JSON, which is YAML too and what most clients send."""
    try:
        return json.loads(body)
    except ValueError:
        pass
    try:
        return config_file.load(body.decode(), source="the body")
    except (ConfigError, UnicodeDecodeError) as error:
        raise refusals.bad_request(f"error decoding YAML: {error}") from None


def _as_applied(settled: Any, written: Any) -> Any:
    """Return the settled form of exactly the fields that were written.

    An empty map or list names no parts, but it is owned itself.
    """
    if isinstance(settled, dict) and isinstance(written, dict):
        return {
            name: _as_applied(settled[name], value) if name in settled else value
            for name, value in written.items()
            if name in settled or value in ({}, [])
        }
    if isinstance(settled, list) and isinstance(written, list):
        return [_as_applied(one, two) for one, two in zip(settled, written, strict=True)]
    return settled


def _no_longer_wanted(last: Paths, wanted: Paths, owners: Owners) -> Paths:
    """Return fields that were applied before and now have no owner."""
    still = wanted.union(*(entry.paths for entry in owners.values()))
    needed: set[Path] = set()
    for path in still:
        needed.update(path[:length] for length in range(1, len(path) + 1))
    return frozenset(last - needed)


def _refuse_conflicts(owners: Owners, changed: set[Path], *, force: bool) -> None:
    if force:
        return
    found = [
        (who, entry.api_version, path)
        for who, entry in sorted(owners.items(), key=lambda each: each[0].name)
        for path in sorted(entry.paths & changed)
    ]
    if not found:
        return
    causes = [
        {
            "reason": "FieldManagerConflict",
            "message": f"conflict with {_named(who, version)}",
            "field": field_paths.text(path),
        }
        for who, version, path in found
    ]
    raise Refusal(409, "Conflict", _conflict_message(found), {"causes": causes})


def _conflict_message(found: list[tuple[Manager, str, Path]]) -> str:
    if len(found) == 1:
        [(who, version, path)] = found
        named = _named(who, version)
        return f"Apply failed with 1 conflict: conflict with {named}: {field_paths.text(path)}"
    lines: Mapping[str, list[str]] = {_named(who, version): [] for who, version, _ in found}
    for who, version, path in found:
        lines[_named(who, version)].append(f"- {field_paths.text(path)}")
    text = [line for named, below in lines.items() for line in (f"conflicts with {named}:", *below)]
    return f"Apply failed with {len(found)} conflicts: " + "\n".join(text)


def _named(who: Manager, api_version: str) -> str:
    named = f'"{who.name}"'
    if who.subresource:
        named += f' with subresource "{who.subresource}"'
    return f"{named} using {api_version}" if who.operation == managed_fields.UPDATE else named


def _without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _without_nulls(inner) for name, inner in value.items() if inner is not None}
    return [_without_nulls(inner) for inner in value] if isinstance(value, list) else value


def _untyped(kind: Kind, patch: Object, why: str) -> Refusal:
    metadata = patch.get("metadata") or {}
    name = f"{metadata.get('namespace', '')}/{metadata.get('name', '')}"
    what = f"{name}; {kind.api_version}, Kind={kind.kind}"
    return Refusal(500, "InternalError", f"failed to create typed patch object ({what}): {why}")
