"""What is wrong with a field, in the words that Kubernetes has for it."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

import msgspec

_LONGEST = 1024


class Cause(msgspec.Struct, frozen=True):
    field: str
    reason: str
    message: str


def required(field: str, why: str = "") -> Cause:
    return Cause(field, "FieldValueRequired", _told("Required value", why))


def invalid(field: str, value: Any, why: str) -> Cause:
    return Cause(field, "FieldValueInvalid", f"Invalid value: {_shown(value)}: {why}")


def immutable(field: str, value: Any) -> Cause:
    return invalid(field, value, "field is immutable")


def forbidden(field: str, why: str) -> Cause:
    return Cause(field, "FieldValueForbidden", _told("Forbidden", why))


def duplicate(field: str, value: Any) -> Cause:
    return Cause(field, "FieldValueDuplicate", f"Duplicate value: {_shown(value)}")


def too_long(field: str, most: int) -> Cause:
    return Cause(field, "FieldValueTooLong", f"Too long: may not be more than {most} bytes")


def unsupported(field: str, value: Any, supported: Iterable[str]) -> Cause:
    known = ", ".join(json.dumps(each) for each in supported)
    message = f"Unsupported value: {_shown(value)}: supported values: {known}"
    return Cause(field, "FieldValueNotSupported", message)


def _told(what: str, why: str) -> str:
    return f"{what}: {why}" if why else what


def _shown(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    return text if len(text) <= _LONGEST else text[:_LONGEST] + "..."
