"""JSON patch, merge patch and strategic merge patch of one object."""

from __future__ import annotations

import copy
import json
from typing import Any

from hami_sandbox.apiserver import refusals
from hami_sandbox.apiserver.kind import Kind
from hami_sandbox.apiserver.refusals import Object, Refusal
from hami_sandbox.apiserver.schema import json_patch, schema, strategic, types

JSON = "application/json-patch+json"
MERGE = "application/merge-patch+json"
STRATEGIC = "application/strategic-merge-patch+json"
APPLY = "application/apply-patch+yaml"
_MOST_OPERATIONS = 10_000
_LONGEST_QUOTE = 400


def patched(
    kind: Kind,
    current: Object,
    content_type: str,
    body: bytes,
    *,
    unknown: list[str] | None = None,
) -> Object:
    """Return the patched and settled object; paths of unknown fields are added to `unknown`."""
    media_type = content_type.partition(";")[0].strip().lower()
    if media_type not in {JSON, MERGE, STRATEGIC} or (media_type == STRATEGIC and kind.custom):
        raise unsupported(media_type, kind)
    patch = _decoded(body, list if media_type == JSON else dict)
    match media_type:
        case "application/json-patch+json":
            result = _operated(current, patch)
        case "application/merge-patch+json":
            result = json_patch.merged(current, patch)
        case _:
            result = _strategic(kind, current, patch)
    # The result may share parts with the stored object, which settling must not touch.
    result = copy.deepcopy(result)
    try:
        found = schema.settle(kind, result)
    except schema.ShapeError as error:
        raise invalid(body, str(error)) from None
    if unknown is not None:
        unknown.extend(found)
    result.update(apiVersion=kind.api_version, kind=kind.kind)
    return result


def unsupported(media_type: str, kind: Kind) -> Refusal:
    """Refuse a type of patch that the kind does not take."""
    accepted = [JSON, MERGE, *([] if kind.custom else [STRATEGIC]), APPLY]
    return Refusal(
        415,
        "UnsupportedMediaType",
        "the body of the request was in an unknown format - accepted media types include: "
        f"{', '.join(accepted)}; this one is {media_type or 'none'}",
    )


def _decoded(body: bytes, wanted: type[Any]) -> Any:
    try:
        patch: Any = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise refusals.bad_request(f"error decoding patch: {error}") from None
    if not isinstance(patch, wanted):
        expected = "an array of operations" if wanted is list else "an object"
        raise refusals.bad_request(f"error decoding patch: {expected} was expected")
    count = len(patch)
    if count > _MOST_OPERATIONS:
        raise Refusal(
            413,
            "RequestEntityTooLarge",
            f"The allowed maximum operations in a JSON patch is {_MOST_OPERATIONS}, got {count}",
        )
    return patch


def _operated(current: Object, operations: list[Any]) -> Object:
    try:
        result = json_patch.operated(current, operations)
    except json_patch.PatchError as error:
        cause = {"reason": "UnexpectedServerResponse", "message": str(error)}
        raise Refusal(
            422,
            "Invalid",
            "the server rejected our request due to an error in our request",
            {"causes": [cause]},
        ) from None
    if not isinstance(result, dict):
        raise invalid(json.dumps(result).encode(), "the result is not an object")
    return result


def _strategic(kind: Kind, current: Object, patch: Object) -> Object:
    try:
        return strategic.merged(types.of(kind), current, patch)
    except strategic.StrategicError as error:
        raise Refusal(500, "InternalError", str(error)) from None


def invalid(body: bytes, why: str) -> Refusal:
    """Refuse a patch that makes no proper object."""
    shown = json.dumps(body.decode(errors="replace")[:_LONGEST_QUOTE])
    cause = {
        "reason": "FieldValueInvalid",
        "message": f"Invalid value: {shown}: {why}",
        "field": "patch",
    }
    message = f' "" is invalid: patch: {cause["message"]}'
    return Refusal(422, "Invalid", message, {"causes": [cause]})
