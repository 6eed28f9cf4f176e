"""JSON to structs and back, with one error type.

Only declared fields are decoded, the others are skipped. This module alone calls msgspec's JSON
functions: a change of library touches one file, and no exception of the library (nor RecursionError
or UnicodeError from hostile input) escapes.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from typing import Any, Literal, TypeVar, get_args, get_origin

import msgspec

from hami.wire import errors

T = TypeVar("T")

#: One decoder per type: building one costs more than decoding an annotation.
_decoder: Callable[[Any], msgspec.json.Decoder[Any]] = functools.cache(msgspec.json.Decoder)

_GO_ESCAPES = str.maketrans({c: f"\\u{ord(c):04x}" for c in "<>&\u2028\u2029"})


_NULL = msgspec.Raw(b"null")
#: By type; other types (any value, values that may be null) keep null.
_ZEROS: dict[Any, object] = {str: "", int: 0, bool: False, list: (), tuple: (), dict: {}}


class Object(msgspec.Struct, frozen=True, gc=False, omit_defaults=True, rename="camel"):
    """Base of everything decoded from Kubernetes: read-only plain data, never part of a cycle."""


def decode(data: bytes | str, into: type[T], *, what: str) -> T:
    """Decode JSON into a declared type; `what` names the document in a WireError.

    The error quotes a text (an annotation's value), but of bytes (whole objects, with env and
    annotations of any kind) it gives only the length.
    """
    try:
        decoded: T = _decoder(into).decode(data)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise errors.WireError(what, data, f"does not decode: {error}") from error
    return decoded


def decode_go(data: str, into: type[T], *, what: str) -> T:
    """Decode JSON as Go does: a value that is null, or required and missing, is its type's zero.

    Writers in Go mostly omit such values, so they are looked for only where strict decoding fails.
    The outermost value must not be null. Of a repeated key only the last value counts then, even
    where an earlier one has the wrong type; no writer that we know of repeats a key.
    """
    decoder = _decoder(into)
    try:
        try:
            decoded: T = decoder.decode(data)
        except msgspec.ValidationError:
            decoded = decoder.decode(msgspec.json.encode(_filled(data.encode(), into)))
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise errors.WireError(what, data, f"does not decode: {error}") from error
    return decoded


#: msgspec tells where a value ends only in the error for what follows it.
_FOLLOWED = re.compile(r"JSON is malformed: trailing characters \(byte (\d+)\)")


def value_length(data: memoryview) -> int:
    """Return how many bytes the first JSON value has, with the spaces around it.

    0: it does not end here, as far as these bytes tell; only what follows a value proves its end.
    Raises WireError for a value that is nested too deep.
    """
    try:
        _decoder(msgspec.Raw).decode(data)
    except msgspec.DecodeError as error:
        found = _FOLLOWED.fullmatch(str(error))
        return int(found[1]) - 1 if found else 0
    except RecursionError as error:
        raise errors.WireError("JSON", bytes(data[:1]), f"does not decode: {error}") from error
    return 0


def finds_lengths() -> bool:
    """Return whether `value_length` understands the errors of the msgspec that is installed."""
    return value_length(memoryview(b'{"a": "}"} ,')) == len(b'{"a": "}"} ')


def encode(value: Any) -> bytes:
    """Encode structs and plain data as compact JSON."""
    return _encode(value, None)


def encode_text(value: Any) -> str:
    """Encode as JSON text for annotation values.

    Texts, integers and booleans are written byte for byte as Go writes them; floats may differ.
    """
    # JSON has the escaped characters in strings only, so the whole text can be translated.
    return _encode(value, "deterministic").decode().translate(_GO_ESCAPES)


def _encode(value: Any, order: Literal["deterministic"] | None) -> bytes:
    try:
        return msgspec.json.encode(value, order=order)
    except (ValueError, OverflowError, RecursionError) as error:
        raise errors.WireError("JSON", type(value).__name__, f"does not encode: {error}") from error


def _filled(data: bytes, kind: Any) -> Any:
    """Return a JSON value of this type with zeros in place of nulls, ready to be encoded."""
    container, inner = get_origin(kind) or kind, get_args(kind)
    try:
        if container in (list, tuple):
            items: list[msgspec.Raw] = _decoder(list[msgspec.Raw]).decode(data)
            return [_filled_member(item, inner[0]) for item in items]
        if container is dict:
            return {name: _filled_member(raw, inner[1]) for name, raw in _members(data).items()}
        if _is_struct(container):
            members = _members(data)
            return {
                field.encode_name: _filled_member(members.get(field.encode_name, _NULL), field.type)
                for field in msgspec.structs.fields(container)
                if field.required or members.get(field.encode_name, _NULL) != _NULL
            }
    except msgspec.ValidationError:
        pass  # no object or array where one belongs: the caller's decoder says where
    return msgspec.Raw(data)


def _filled_member(raw: msgspec.Raw, kind: Any) -> Any:
    if raw != _NULL:
        return _filled(bytes(raw), kind)
    container = get_origin(kind) or kind
    return _filled(b"{}", container) if _is_struct(container) else _ZEROS.get(container)


def _members(data: bytes) -> dict[str, msgspec.Raw]:
    found: dict[str, msgspec.Raw] = _decoder(dict[str, msgspec.Raw]).decode(data)
    return found


def _is_struct(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, msgspec.Struct)
