"""JSON patch, merge patch and strategic merge patch of one object.

JSON patch is RFC 6902, merge patch RFC 7396; `strategic` has the third.
"""

from __future__ import annotations

import copy
import json
from typing import Any

from hami_sandbox.apiserver import refusals
from hami_sandbox.apiserver.kinds import Kind
from hami_sandbox.apiserver.refusals import Object, Refusal
from hami_sandbox.apiserver.schema import schema, strategic

_INDEX_END = "-"


class PatchError(ValueError):
    """An operation cannot be done; the object stays as it was."""


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
            result = merged(current, patch)
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
        result = operated(current, operations)
    except PatchError as error:
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
        return strategic.merged(schema.of(kind), current, patch)
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


def operated(document: Any, operations: list[Any]) -> Any:
    """Return a copy of the document after all operations of a JSON patch."""
    result = copy.deepcopy(document)
    for operation in operations:
        result = _operate(result, operation)
    return result


def merged(target: Any, patch: Any) -> Any:
    """Return the target after a merge patch: null removes, objects merge, the rest replaces."""
    if not isinstance(patch, dict):
        return patch
    result = dict(target) if isinstance(target, dict) else {}
    for name, value in patch.items():
        if value is None:
            result.pop(name, None)
        else:
            result[name] = merged(result.get(name), value)
    return result


def _operate(document: Any, operation: Any) -> Any:
    if not isinstance(operation, dict) or not isinstance(operation.get("path"), str):
        raise PatchError(f"an operation without a path: {operation!r}")
    path = _tokens(operation["path"])
    match operation.get("op"):
        case "add":
            return _add(document, path, copy.deepcopy(_given(operation)))
        case "remove":
            _take(document, path)
        case "replace":
            _replace(document, path, copy.deepcopy(_given(operation)))
        case "test":
            if not _same(_get(document, path), operation.get("value")):
                raise PatchError(f"testing value {operation['path']} failed: test failed")
        case "copy":
            value = copy.deepcopy(_get(document, _tokens(operation.get("from"))))
            return _add(document, path, value)
        case "move":
            return _add(document, path, _take(document, _tokens(operation.get("from"))))
        case unknown:
            raise PatchError(f"Unexpected kind: {unknown}")
    return document


def _given(operation: dict[str, Any]) -> Any:
    if "value" not in operation:
        raise PatchError(f"{operation['op']} operation has no value: {operation['path']}")
    return operation["value"]


def _tokens(pointer: Any) -> list[str]:
    if pointer == "":
        return []
    if not isinstance(pointer, str) or not pointer.startswith("/"):
        raise PatchError(f"not a JSON pointer: {pointer!r}")
    return [part.replace("~1", "/").replace("~0", "~") for part in pointer[1:].split("/")]


def _step(value: Any, token: str) -> Any:
    if isinstance(value, dict) and token in value:
        return value[token]
    if isinstance(value, list):
        return value[_index(token, last=len(value) - 1)]
    raise PatchError(f"doc is missing key: {token}: missing value")


def _index(token: str, *, last: int) -> int:
    plain = token.isascii() and token.isdigit() and str(int(token)) == token
    if not plain or int(token) > last:
        raise PatchError(f"Unable to access invalid index: {token}: invalid index referenced")
    return int(token)


def _get(document: Any, path: list[str]) -> Any:
    for token in path:
        document = _step(document, token)
    return document


def _add(document: Any, path: list[str], value: Any) -> Any:
    if not path:
        return value
    parent, token = _get(document, path[:-1]), path[-1]
    if isinstance(parent, dict):
        parent[token] = value
    elif isinstance(parent, list):
        end = len(parent)
        parent.insert(end if token == _INDEX_END else _index(token, last=end), value)
    else:
        raise PatchError(f"add operation does not apply: doc is missing path: {token}")
    return document


def _replace(document: Any, path: list[str], value: Any) -> None:
    if not path:
        raise PatchError("replace operation of the whole document is not taken")
    parent, token = _get(document, path[:-1]), path[-1]
    _step(parent, token)
    parent[token if isinstance(parent, dict) else int(token)] = value


def _take(document: Any, path: list[str]) -> Any:
    if not path:
        raise PatchError("remove operation of the whole document is not taken")
    parent, token = _get(document, path[:-1]), path[-1]
    value = _step(parent, token)
    del parent[token if isinstance(parent, dict) else int(token)]
    return value


def _same(one: Any, two: Any) -> bool:
    """Compare as JSON does: true is not one."""
    if isinstance(one, bool) != isinstance(two, bool):
        return False
    if isinstance(one, dict) and isinstance(two, dict):
        return one.keys() == two.keys() and all(_same(one[name], two[name]) for name in one)
    if isinstance(one, list) and isinstance(two, list):
        return len(one) == len(two) and all(_same(a, b) for a, b in zip(one, two, strict=True))
    return bool(one == two)
