"""Bytes to structs and back, with one error type.

msgspec decodes only the declared fields and skips the rest. This module is the only place that
calls its JSON functions, so that a later change of library touches one file, and so that no
exception of the library (nor RecursionError or UnicodeDecodeError from hostile bytes) escapes.
"""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec

from hami.wire import errors

T = TypeVar("T")


class Object(msgspec.Struct, frozen=True, gc=False, omit_defaults=True, rename="camel"):
    """Base of everything decoded from Kubernetes: read-only plain data, never part of a cycle."""


def decode(data: bytes | str, into: type[T], *, what: str) -> T:
    """Decode JSON into a declared type; `what` names the thing in the error."""
    try:
        return msgspec.json.decode(data, type=into)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise errors.WireError(
            what, data if isinstance(data, str) else bytes(data[:100]), f"does not decode: {error}"
        ) from error


def encode(value: Any) -> bytes:
    """Encode structs and plain data as compact JSON."""
    return msgspec.json.encode(value)


def encode_text(value: Any) -> str:
    """Encode as JSON text, for annotation values."""
    return msgspec.json.encode(value).decode()
