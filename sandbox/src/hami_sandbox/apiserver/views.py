"""Objects that two kinds show: events are stored as the core group has them.

The newer group names the same fields differently; nothing is lost either way.
"""

from __future__ import annotations

from hami_sandbox.apiserver.kind import Kind
from hami_sandbox.apiserver.refusals import Object
from hami_sandbox.apiserver.stored import Stored

#: Names in events.k8s.io, and in the core group.
_RENAMED = {
    "regarding": "involvedObject",
    "note": "message",
    "reportingController": "reportingComponent",
    "deprecatedSource": "source",
    "deprecatedFirstTimestamp": "firstTimestamp",
    "deprecatedLastTimestamp": "lastTimestamp",
    "deprecatedCount": "count",
}
_SHOWN = {core: new for new, core in _RENAMED.items()}


def shown(kind: Kind, stored: Stored) -> Stored:
    """Return a stored object as a kind shows it; made once."""
    if kind.stored == (kind.group, kind.resource):
        return stored
    if stored.shown is None:
        stored.shown = {}
    found = stored.shown.get(kind.group)
    if found is None:
        content = as_shown(kind, stored.object)
        found = stored.shown[kind.group] = Stored(content, stored.revision)
    return found


def as_shown(kind: Kind, content: Object) -> Object:
    """Return the content as a kind shows it."""
    if kind.stored == (kind.group, kind.resource):
        return content
    return _named({_SHOWN.get(key, key): value for key, value in content.items()}, kind)


def as_stored(kind: Kind, content: Object) -> Object:
    """Return the content of a kind in the form in which it is stored."""
    if kind.stored == (kind.group, kind.resource):
        return content
    group, _ = kind.stored
    renamed = {_RENAMED.get(key, key): value for key, value in content.items()}
    renamed["apiVersion"] = f"{group}/{kind.version}" if group else kind.version
    return renamed


def _named(content: Object, kind: Kind) -> Object:
    content["apiVersion"] = kind.api_version
    content["kind"] = kind.kind
    return content
