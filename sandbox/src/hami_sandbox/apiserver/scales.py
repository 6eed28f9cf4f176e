"""The subresource scale: how many replicas a deployment or replica set has, and shall have."""

from __future__ import annotations

from collections.abc import Callable

from hami_sandbox.apiserver import bodies, updates
from hami_sandbox.apiserver.call import Call
from hami_sandbox.apiserver.kind import Kind
from hami_sandbox.apiserver.refusals import Object, Refusal, invalid
from hami_sandbox.apiserver.schema import patches
from hami_sandbox.apiserver.stored import Stored
from hami_sandbox.apiserver.writes import Writes, copied, same_name
from hami_sandbox.label_selectors import as_query

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

    def wish(present: Object) -> Object:
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

    return _scale(await writes.change(call, wish, options="UpdateOptions"))


def _replacing(call: Call) -> Callable[[Object], Object]:
    body = bodies.plain(call)
    metadata = body.setdefault("metadata", {})
    same_name(call, metadata)
    return lambda _: body


def _patching(call: Call) -> Callable[[Object], Object]:
    content_type = call.content_type
    if content_type not in updates.PATCHES or content_type == updates.APPLY:
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
