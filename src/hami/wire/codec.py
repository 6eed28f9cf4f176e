"""Bytes to structs and back, with one error type.

msgspec decodes only the declared fields and skips the rest. This module is the only place that
calls its JSON functions, so that a later change of library touches one file, and so that no
exception of the library (nor RecursionError or UnicodeError from hostile input) escapes.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Literal, TypeVar

import msgspec

from hami.wire import errors

T = TypeVar("T")

#: One decoder per type: building one costs more than decoding an annotation.
_decoder: Callable[[Any], msgspec.json.Decoder[Any]] = functools.cache(msgspec.json.Decoder)

_GO_ESCAPES = str.maketrans({c: f"\\u{ord(c):04x}" for c in "<>&\u2028\u2029"})


class Object(msgspec.Struct, frozen=True, gc=False, omit_defaults=True, rename="camel"):
    """Base of everything decoded from Kubernetes: read-only plain data, never part of a cycle."""


def decode(data: bytes | str, into: type[T], *, what: str) -> T:
    """Decode JSON into a declared type; `what` names the thing in the error.

    The error quotes a text (an annotation's value), but of bytes (whole objects, with env and
    annotations of any kind) it tells only the length.
    """
    try:
        decoded: T = _decoder(into).decode(data)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise errors.WireError(what, data, f"does not decode: {error}") from error
    return decoded


def encode(value: Any) -> bytes:
    """Encode structs and plain data as compact JSON."""
    return _encode(value, None)


def encode_text(value: Any) -> str:
    """Encode as JSON text for annotation values.

    Texts, integers and booleans are written byte for byte as Go writes them; floats may differ.
    """
    # The escaped characters stand in strings only, so the text can be translated as a whole.
    return _encode(value, "deterministic").decode().translate(_GO_ESCAPES)


def _encode(value: Any, order: Literal["deterministic"] | None) -> bytes:
    try:
        return msgspec.json.encode(value, order=order)
    except (ValueError, OverflowError, RecursionError) as error:
        raise errors.WireError("JSON", type(value).__name__, f"does not encode: {error}") from error
