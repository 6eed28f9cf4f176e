"""Replace, patch, apply; the subresource scale."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable

from hami_sandbox.api_objects import as_query
from hami_sandbox.apiserver.call import Call, body_of_kind, plain_body, report_unknown
from hami_sandbox.apiserver.kinds import Kind
from hami_sandbox.apiserver.lists import flag
from hami_sandbox.apiserver.refusals import Object, Refusal, conflict, invalid
from hami_sandbox.apiserver.schema import apply, patches
from hami_sandbox.apiserver.table import Stored
from hami_sandbox.apiserver.writes import MODIFIED, Writes, copied, place, same_name

APPLY = "application/apply-patch+yaml"
PATCHES = (
    "application/json-patch+json",
    "application/merge-patch+json",
    "application/strategic-merge-patch+json",
    APPLY,
)
_CREATED, _OK = 201, 200
_INVALID = "FieldValueInvalid"


async def replace(writes: Writes, call: Call) -> Stored:
    """Store the object in the body in place of the present one."""
    body = body_of_kind(call, call.kind)
    metadata = body["metadata"]
    same_name(call, metadata)
    place(call, metadata)
    if not metadata.get("resourceVersion") and not call.kind.unconditional:
        writes.current(call)
        why = "Invalid value: 0: must be specified for an update"
        cause = {"field": "metadata.resourceVersion", "reason": _INVALID, "message": why}
        raise invalid(call.kind.kind, call.name, [cause], call.kind.group)

    def edit(present: Object) -> Object:
        _same_uid(call, metadata.get("uid") or "", present["metadata"]["uid"])
        return copied(body)

    return await writes.change(call, edit, options="UpdateOptions")


async def patch(writes: Writes, call: Call) -> tuple[int, Stored]:
    """Store the patched object; an applied one may be new."""
    content_type = call.content_type
    if content_type not in PATCHES:
        message = (
            f'the body of the request was in an unknown format ("{content_type}") - accepted '
            f"media types include: {', '.join(PATCHES)}"
        )
        raise Refusal(415, "UnsupportedMediaType", message)
    _check_options(call, applying=content_type == APPLY)
    if content_type == APPLY:
        return await _apply(writes, call)
    reported: list[str] = []

    def edit(present: Object) -> Object:
        unknown: list[str] = []
        content = patches.patched(call.kind, present, content_type, call.body, unknown=unknown)
        if unknown != reported:  # not again when the write is retried
            report_unknown(call, unknown, lambda why: patches.invalid(call.body, why))
            reported[:] = unknown
        _same_place(call, content)
        return content

    return _OK, await writes.change(call, edit, options="PatchOptions")


async def _apply(writes: Writes, call: Call) -> tuple[int, Stored]:
    kind = call.kind

    def applied(live: Object | None) -> Object:
        content = apply.applied(
            kind,
            live,
            call.body,
            manager=call.query["fieldManager"],
            force=flag(call.query, "force"),
            now=dt.datetime.now(dt.UTC),
            subresource=call.subresource,
        )
        _same_place(call, content)
        return content

    if writes.store.table(kind.stored).get(call.namespace, call.name) is None:
        if call.subresource:
            raise call.not_found()
        content = applied(None)
        if content["metadata"].get("resourceVersion"):
            raise conflict(kind.resource, call.name, MODIFIED, kind.group)
        return _CREATED, await writes.add(call, content, tracked=False)
    return _OK, await writes.change(call, applied, options="PatchOptions", tracked=False)


def _check_options(call: Call, *, applying: bool) -> None:
    if applying and not call.query.get("fieldManager"):
        message = "Required value: is required for apply patch"
        cause = {"field": "fieldManager", "reason": "FieldValueRequired", "message": message}
        raise invalid("PatchOptions", "", [cause], "meta.k8s.io")
    if not applying and "force" in call.query:
        message = "Forbidden: may not be specified for non-apply patch"
        cause = {"field": "force", "reason": "FieldValueForbidden", "message": message}
        raise invalid("PatchOptions", "", [cause], "meta.k8s.io")


def _same_place(call: Call, content: Object) -> None:
    """Refuse a patch that gives an object another name or namespace."""
    same_name(call, content["metadata"])
    place(call, content["metadata"])


def _same_uid(call: Call, given: str, present: str) -> None:
    """Refuse to replace an object that was deleted and created since the client read it."""
    if given and given != present:
        why = f"Precondition failed: UID in precondition: {given}, UID in object meta: {present}"
        raise conflict(call.kind.resource, call.name, why, call.kind.group)


_SCALE = Kind(
    group="autoscaling",
    version="v1",
    resource="scales",
    kind="Scale",
    singular="scale",
    custom=True,
)
_FROM_OBJECT = ("name", "namespace", "uid", "resourceVersion", "creationTimestamp")


async def answer(writes: Writes, call: Call) -> Stored:
    """Read or write the scale of an object."""
    if call.target.verb == "get":
        return _scale(writes.current(call))
    change = _replacing(call) if call.target.verb == "update" else _patching(call)

    def edit(present: Object) -> Object:
        scale = change(_scale_of(present))
        replicas = (scale.get("spec") or {}).get("replicas", 0)
        if not isinstance(replicas, int) or replicas < 0:
            message = f"Invalid value: {replicas}: must be greater than or equal to 0"
            cause = {
                "field": "spec.replicas",
                "reason": "FieldValueInvalid",
                "message": message,
            }
            raise invalid("Scale", call.name, [cause], _SCALE.group)
        present["metadata"]["resourceVersion"] = scale["metadata"].get("resourceVersion") or ""
        present.setdefault("spec", {})["replicas"] = replicas
        return present

    return _scale(await writes.change(call, edit, options="UpdateOptions"))


def _replacing(call: Call) -> Callable[[Object], Object]:
    body = plain_body(call)
    metadata = body.setdefault("metadata", {})
    same_name(call, metadata)
    return lambda _: body


def _patching(call: Call) -> Callable[[Object], Object]:
    content_type = call.content_type
    if content_type not in PATCHES or content_type == APPLY:
        message = f'a scale takes no patch of the type "{content_type}"; send a merge patch'
        raise Refusal(415, "UnsupportedMediaType", message)

    def change(scale: Object) -> Object:
        return patches.patched(_SCALE, copied(scale), content_type, call.body)

    return change


def _scale(stored: Stored) -> Stored:
    return Stored(_scale_of(stored.object), stored.revision)


def _scale_of(found: Object) -> Object:
    metadata = found["metadata"]
    spec = found.get("spec", {})
    return {
        "kind": _SCALE.kind,
        "apiVersion": _SCALE.api_version,
        "metadata": {key: metadata[key] for key in _FROM_OBJECT if key in metadata},
        "spec": {"replicas": spec.get("replicas", 0)},
        "status": {
            "replicas": found.get("status", {}).get("replicas", 0),
            "selector": as_query(spec.get("selector")),
        },
    }
