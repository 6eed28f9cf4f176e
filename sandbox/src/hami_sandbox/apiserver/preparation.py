"""What the server itself sets at a write: what identifies an object, and who may write which part.

The names of new objects are made here too.
"""

from __future__ import annotations

import datetime as dt
import secrets
import uuid

from hami_sandbox import times
from hami_sandbox.apiserver.kind import Kind
from hami_sandbox.apiserver.refusals import Object

#: Letters of generated names: none that make words or look like others, as Kubernetes has it.
LETTERS = "bcdfghjklmnpqrstvwxz2456789"
_SUFFIX = 5
_LONGEST_NAME = 63
_FIXED = ("deletionTimestamp", "deletionGracePeriodSeconds")
_FOR_SYSTEM = ("uid", "creationTimestamp", "generation", *_FIXED, "selfLink", "resourceVersion")


def strip(metadata: Object) -> None:
    """Take out of a new object's metadata what its writer cannot choose."""
    for field in _FOR_SYSTEM:
        metadata.pop(field, None)


def identify(kind: Kind, content: Object, *, now: dt.datetime) -> None:
    """Give a new object its identity."""
    metadata = content["metadata"]
    strip(metadata)
    metadata["uid"] = str(uuid.uuid4())
    metadata["creationTimestamp"] = times.stamp(now)
    if kind.generation:
        metadata["generation"] = 1


def generated(prefix: str) -> str:
    """Return a name that begins as asked."""
    suffix = "".join(secrets.choice(LETTERS) for _ in range(_SUFFIX))
    return prefix[: _LONGEST_NAME - _SUFFIX] + suffix


def update(kind: Kind, new: Object, old: Object, subresource: str) -> None:
    """Put back what a write of this part of an object cannot change."""
    before, metadata = old["metadata"], new["metadata"]
    for field in (*_FIXED, "generation"):
        metadata.pop(field, None)
        if field in before:
            metadata[field] = before[field]
    for field in ("uid", "creationTimestamp"):
        if not metadata.get(field) and field in before:
            metadata[field] = before[field]
    if subresource == "status":
        _keep_all_but_status(new, old)
    elif subresource == "finalize":
        _keep_all_but_finalizers(new, old)
    else:
        if kind.has_status:
            _take(new, old, "status")
        if (kind.group, kind.resource) == ("", "services"):
            _keep_address(new, old)
        if kind.generation and _wish(new) != _wish(old):
            metadata["generation"] = before.get("generation", 0) + 1


def _keep_all_but_status(new: Object, old: Object) -> None:
    for field in {*new, *old} - {"metadata", "status"}:
        _take(new, old, field)
    status = new.get("status")
    quality = old.get("status", {}).get("qosClass")
    if quality and isinstance(status, dict):
        status.setdefault("qosClass", quality)


def _keep_all_but_finalizers(new: Object, old: Object) -> None:
    finalizers = (new.get("spec") or {}).get("finalizers")
    for field in {*new, *old} - {"metadata"}:
        _take(new, old, field)
    spec = {key: value for key, value in old.get("spec", {}).items() if key != "finalizers"}
    if finalizers:
        spec["finalizers"] = finalizers
    new["spec"] = spec


def _keep_address(new: Object, old: Object) -> None:
    """Leave a service its address, which its writer did not choose."""
    before, spec = old.get("spec", {}), new.setdefault("spec", {})
    if spec.get("type") == before.get("type"):
        for field in ("clusterIP", "clusterIPs"):
            if not spec.get(field) and before.get(field):
                spec[field] = before[field]


def _take(new: Object, old: Object, field: str) -> None:
    if field in old:
        new[field] = old[field]
    else:
        new.pop(field, None)


def _wish(content: Object) -> Object:
    """Return what the generation counts the changes of."""
    return {key: value for key, value in content.items() if key not in {"metadata", "status"}}
