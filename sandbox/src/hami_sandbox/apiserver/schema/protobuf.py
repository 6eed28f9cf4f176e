r"""Decode objects in protobuf, which typed Go clients send by default.

Only reading: every such client takes JSON as an answer. A body is the four bytes `k8s\0` and an
envelope that names the kind; the numbers of its fields are in `fields/*.txt`. Go writes most
fields even if they are empty, so an empty one counts as left out unless its zero has a meaning.
"""

from __future__ import annotations

import base64
import dataclasses
import datetime as dt
import functools
import json
from collections.abc import Iterator
from typing import Any

from hami_sandbox.apiserver.refusals import Object
from hami_sandbox.apiserver.schema import schema
from hami_sandbox.apiserver.schema.schema import Shape

MEDIA_TYPE = "application/vnd.kubernetes.protobuf"

_MAGIC = b"k8s\0"
_VARINT, _FIXED64, _PIECE, _FIXED32 = 0, 1, 2, 5
_LONGEST_VARINT = 70
_ZERO = (None, "", 0, False)


class ProtobufError(ValueError):
    """The bytes are not an object that we can read."""


@dataclasses.dataclass(slots=True, eq=False)
class _Slot:
    """The meaning of a field number: a field of the JSON, or a message to inline."""

    name: str = ""
    shape: Shape | None = None
    keeps_zero: bool = False
    inline: dict[int, _Slot] | None = None


def decode(body: bytes) -> Object:
    """Return the object, with apiVersion and kind as the envelope names them."""
    if not body.startswith(_MAGIC):
        raise ProtobufError("provided data does not appear to be a protobuf message")
    try:
        return _enveloped(body[len(_MAGIC) :])
    except (UnicodeDecodeError, OverflowError, OSError) as error:
        raise ProtobufError(f"a field cannot be decoded: {error}") from None


def _enveloped(data: bytes) -> Object:
    envelope = dict(_fields(data))
    named = dict(_fields(_piece(envelope.get(1, b""))))
    api_version, kind = (_piece(named.get(number, b"")).decode() for number in (1, 2))
    if envelope.get(3):
        raise ProtobufError("the body is encoded twice")
    found = _message(_slots(_root(api_version, kind)), _piece(envelope.get(2, b"")))
    return {"apiVersion": api_version, "kind": kind, **found}


def _root(api_version: str, kind: str) -> Shape:
    shape = schema.root(api_version.rpartition("/")[0], kind)
    if shape.open:
        raise ProtobufError(f"{api_version}, Kind={kind} is taken as JSON only")
    return shape


@functools.cache
def _slots(shape: Shape) -> dict[int, _Slot]:
    slots: dict[int, _Slot] = {}
    for name, field in shape.fields.items():
        written = shape.numbers.get(name, "")
        if not written:
            continue
        *outer, last = (int(part) for part in written.rstrip("*").split("."))
        level = slots
        for number in outer:
            slot = level.setdefault(number, _Slot(inline={}))
            assert slot.inline is not None, f"{shape.name} {name} lies in a field"
            level = slot.inline
        level[last] = _Slot(name, field, written.endswith("*"))
    return slots


def _message(slots: dict[int, _Slot], data: bytes) -> Object:
    found: Object = {}
    for number, value in _fields(data):
        slot = slots.get(number)
        if slot is None:
            if value not in (b"", 0):
                raise ProtobufError(f"field number {number} is not known; send the object as JSON")
        elif slot.inline is not None:
            found |= _message(slot.inline, _piece(value))
        elif slot.shape is not None:
            _put(found, slot, slot.shape, value)
    return found


def _put(found: Object, slot: _Slot, shape: Shape, value: int | bytes) -> None:
    if shape.what == "list":
        for item in _items(shape.of, value):
            found.setdefault(slot.name, []).append(item)
    elif shape.what == "map":
        key, item = _entry(shape.of, _piece(value))
        found.setdefault(slot.name, {})[key] = item
    else:
        read = _value(shape, value)
        if slot.keeps_zero or not (read in _ZERO and not isinstance(read, dict)):
            found[slot.name] = read


def _items(shape: Shape, value: int | bytes) -> Iterator[Any]:
    if shape.what in {"int", "long"} and isinstance(value, bytes):  # packed
        at = 0
        while at < len(value):
            number, at = _varint(value, at)
            yield _signed(number)
        return
    yield _value(shape, value)


def _entry(shape: Shape, data: bytes) -> tuple[str, Any]:
    parts = dict(_fields(data))
    key = _piece(parts.get(1, b"")).decode()
    if shape.what == "list":  # in a message of its own, under number one
        return key, [_value(shape.of, value) for _, value in _fields(_piece(parts.get(2, b"")))]
    return key, _value(shape, parts.get(2, b"" if shape.what != "bool" else 0))


def _value(shape: Shape, value: int | bytes) -> Any:  # noqa: PLR0911 - one for each type
    match shape.what:
        case "struct":
            return _message(_slots(shape), _piece(value))
        case "string":
            return _piece(value).decode()
        case "bool":
            return bool(value)
        case "int" | "long":
            return _signed(_number(value))
        case "bytes":
            return base64.b64encode(_piece(value)).decode()
        case "quantity":
            return _piece(dict(_fields(_piece(value))).get(1, b"0")).decode()
        case "intstr":
            return _int_or_string(_piece(value))
        case "time" | "micro":
            return _time(_piece(value), shape.what)
        case _:
            return _raw(_piece(value))


def _int_or_string(data: bytes) -> int | str:
    parts = dict(_fields(data))
    if parts.get(1):
        return _piece(parts.get(3, b"")).decode()
    return _signed(_number(parts.get(2, 0)))


def _time(data: bytes, what: str) -> str | None:
    parts = dict(_fields(data))
    seconds, nanos = (_signed(_number(parts.get(number, 0))) for number in (1, 2))
    if (not seconds and not nanos) or seconds < 0:
        return None
    unit = "microseconds" if what == "micro" else "seconds"
    moment = dt.datetime.fromtimestamp(seconds, dt.UTC).replace(microsecond=nanos // 1000)
    return moment.isoformat(timespec=unit).replace("+00:00", "Z")


def _raw(data: bytes) -> Any:
    """Return JSON that lies in a message as bytes, as the owners of fields do."""
    if not data:
        return None
    try:
        return json.loads(_piece(dict(_fields(data)).get(1, b"")))
    except ValueError:
        raise ProtobufError("a field is taken as JSON only; send the object as JSON") from None


def _fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    at = 0
    while at < len(data):
        tag, at = _varint(data, at)
        layout = tag & 7
        if layout == _VARINT:
            value, at = _varint(data, at)
            yield tag >> 3, value
            continue
        size = {_FIXED64: 8, _FIXED32: 4}.get(layout)
        if layout == _PIECE:
            size, at = _varint(data, at)
        if size is None or at + size > len(data):
            raise ProtobufError("the message ends early or is invalid")
        yield tag >> 3, data[at : at + size]
        at += size


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        if at >= len(data) or shift >= _LONGEST_VARINT:
            raise ProtobufError("a number ends early or is too long")
        byte = data[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:  # noqa: PLR2004 - the top bit says that more follows
            return value, at


def _signed(value: int) -> int:
    value &= 2**64 - 1
    return value - 2**64 if value >= 2**63 else value


def _piece(value: int | bytes) -> bytes:
    if not isinstance(value, bytes):
        raise ProtobufError("found a number, expected a message or a text; send the object as JSON")
    return value


def _number(value: int | bytes) -> int:
    if not isinstance(value, int):
        raise ProtobufError("found a text, expected a number; send the object as JSON")
    return value
