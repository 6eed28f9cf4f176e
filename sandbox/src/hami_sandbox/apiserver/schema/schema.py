"""What fields an object of a kind may have, and bringing one into the form the server keeps."""

from __future__ import annotations

import base64
import binascii
import datetime as dt
import re
from collections.abc import Callable
from typing import Any

from hami_sandbox.apiserver.kind import Kind
from hami_sandbox.apiserver.refusals import Object
from hami_sandbox.apiserver.schema import quantities, types
from hami_sandbox.apiserver.schema.types import Shape

_SECONDS = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", re.ASCII)
_MICROS = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}(?!\d)", re.ASCII)
_MICROS_UTC = re.compile(_MICROS.pattern + "Z", re.ASCII)
_INT32, _INT64 = 2**31, 2**63
#: An empty list there means something: the record of owners is to be dropped.
_KEPT_EMPTY = "managedFields"


class ShapeError(ValueError):
    """A value has another type than its field; worded as Go's decoder words it."""


def settle(kind: Kind, obj: Object) -> list[str]:
    """Make an object what the server keeps, in place; return the paths of unknown fields.

    Call it on every decoded body, every patched object and every object that a webhook changed.
    Unknown fields, nulls and empty maps and lists go; quantities and times become canonical; what
    Go always writes (`spec: {}`) is there. Raises ShapeError for values of a wrong type.
    """
    return settle_shape(types.of(kind), obj)


def settle_shape(shape: Shape, obj: Object) -> list[str]:
    """Do the same for any struct, such as the options or the Scale of a request."""
    unknown: list[str] = []
    _struct(shape, obj, "", unknown)
    return unknown


def _value(shape: Shape, value: Any, path: str, unknown: list[str]) -> Any:
    """Return the settled value, or None if nothing of it is kept."""
    match shape.what:
        case "struct":
            return _struct(shape, value, path, unknown)
        case "list":
            return _list(shape, value, path, unknown)
        case "map":
            return _map(shape, value, path, unknown)
        case _:
            return _SCALARS[shape.what](value, path)


def _struct(shape: Shape, value: Any, path: str, unknown: list[str]) -> Object:
    if not isinstance(value, dict):
        raise _mismatch(value, path, shape.name or "map[string]interface {}")
    found: Object = value
    for name in tuple(found):
        inner, field = found[name], shape.field(name)
        if field is None:
            unknown.append(f"{path}.{name}" if path else str(name))
        elif inner is not None:
            kept = _value(field, inner, f"{path}.{name}" if path else name, unknown)
            if _is_written(shape, name, kept) or field is types.ANY:
                found[name] = kept
                continue
        del found[name]
    for name, field in shape.fields.items():
        if field.always and field.what == "struct" and name not in found:
            found[name] = _struct(field, {}, f"{path}.{name}", unknown)
    return found


def _is_written(shape: Shape, name: str, value: Any) -> bool:
    """Say whether Go writes the value: not nothing, and not a zero that was not meant."""
    if isinstance(value, dict | list):
        return True
    return bool(value) or (value is not None and shape.keeps_zero(name))


def _list(shape: Shape, value: Any, path: str, unknown: list[str]) -> list[Any] | None:
    if not isinstance(value, list):
        raise _mismatch(value, path, f"[]{_go_name(shape.of)}")
    found = []
    for index, item in enumerate(value):
        inner = {} if item is None and shape.of.what == "struct" else item
        found.append(_value(shape.of, inner, f"{path}[{index}]", unknown))
    return found if found or shape.always or path.endswith(_KEPT_EMPTY) else None


def _map(shape: Shape, value: Any, path: str, unknown: list[str]) -> Object | None:
    if not isinstance(value, dict):
        raise _mismatch(value, path, f"map[string]{_go_name(shape.of)}")
    found: Object = {}
    for name, item in value.items():
        if shape.of.what == "quantity":
            found[name] = _quantity(item, f"{path}.{name}", quantities.MILLI)
        elif item is None:
            found[name] = "" if shape.of.what in {"string", "bytes"} else None
        else:
            found[name] = _value(shape.of, item, f"{path}.{name}", unknown)
    return found or None


def _string(value: Any, path: str) -> str:
    if not isinstance(value, str):
        raise _mismatch(value, path, "string")
    return value


def _bool(value: Any, path: str) -> bool:
    if not isinstance(value, bool):
        raise _mismatch(value, path, "bool")
    return value


def _integer(value: Any, path: str, bound: int, name: str) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not -bound <= value < bound:
        raise _mismatch(value, path, name)
    return value


def _int_or_string(value: Any, path: str) -> int | str:
    return value if isinstance(value, str) else _integer(value, path, _INT32, "intstr.IntOrString")


def _quantity(value: Any, path: str, least: int = quantities.NANO) -> str:
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise ShapeError(f"{path}: {quantities.RULE}")
    try:
        return quantities.canonical(value, least=least)
    except ValueError as error:
        raise ShapeError(str(error)) from None


def _bytes(value: Any, path: str) -> str:
    text = _string(value, path)
    try:
        base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise ShapeError(f"illegal base64 data in {path}: {text[:40]!r}") from None
    return text


def _time(value: Any, path: str) -> str | None:
    text = _string(value, path)
    return text if _SECONDS.fullmatch(text) else _rewritten(text, "seconds")


def _micro_time(value: Any, path: str) -> str | None:
    text = _string(value, path)
    if text and not _MICROS.match(text):
        layout = "2006-01-02T15:04:05.000000Z07:00"
        raise ShapeError(f'parsing time "{text}" as "{layout}": cannot parse "{text}"')
    return text if _MICROS_UTC.fullmatch(text) else _rewritten(text, "microseconds")


def _rewritten(text: str, unit: str) -> str | None:
    if not text:
        return None
    try:
        moment = dt.datetime.fromisoformat(text)
    except ValueError:
        moment = None
    if moment is None or moment.tzinfo is None:
        raise ShapeError(
            f'parsing time "{text}" as "2006-01-02T15:04:05Z07:00": cannot parse "{text}"'
        )
    return moment.astimezone(dt.UTC).isoformat(timespec=unit).replace("+00:00", "Z")


_SCALARS: dict[str, Callable[[Any, str], Any]] = {
    "string": _string,
    "bool": _bool,
    "int": lambda value, path: _integer(value, path, _INT32, "int32"),
    "long": lambda value, path: _integer(value, path, _INT64, "int64"),
    "intstr": _int_or_string,
    "quantity": _quantity,
    "bytes": _bytes,
    "time": _time,
    "micro": _micro_time,
    "any": lambda value, _path: value,
}
_GO_NAMES = {"int": "int32", "long": "int64", "bytes": "uint8", "any": "interface {}"}


def _go_name(shape: Shape) -> str:
    return shape.name or _GO_NAMES.get(shape.what, shape.what)


def _mismatch(value: Any, path: str, wanted: str) -> ShapeError:
    match value:
        case bool():
            found = "bool"
        case int() | float():
            found = (
                "number" if wanted == "string" or isinstance(value, float) else f"number {value}"
            )
        case str():
            found = "string"
        case list():
            found = "array"
        case None:
            found = "null"
        case _:
            found = "object"
    where = f"field {path}" if path else "value"
    return ShapeError(f"json: cannot unmarshal {found} into Go struct {where} of type {wanted}")
