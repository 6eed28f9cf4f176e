"""The error of the auditor's decoders, and their common values."""

from __future__ import annotations

import json
import re
from typing import Any

INT32_MAX = 2**31 - 1

_NUMBER = re.compile(r"0|[1-9][0-9]{0,9}", re.ASCII)
_DNS = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?", re.ASCII)


class MalformedError(ValueError):
    """A text is not what the protocol says; the message gives the value and the rule."""


def parse_json(text: str | bytes) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise MalformedError(f"is no JSON: {error}") from error


def objects(value: Any) -> list[dict[str, Any]]:
    """Return the objects of a JSON list."""
    if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
        raise MalformedError(f"{shown(value)} is no list of objects")
    return value


def decimal(text: str, what: str, highest: int = INT32_MAX) -> int:
    """Read a whole number as every writer of the protocol writes it: digits, nothing else."""
    if not _NUMBER.fullmatch(text) or int(text) > highest:
        raise MalformedError(f"{what} {text!r} is no whole number from 0 to {highest}")
    return int(text)


def integer(holder: dict[str, Any], name: str, lowest: int = 0) -> int:
    """Return a number of a JSON object; Go leaves out zeros."""
    value = holder.get(name, 0)
    if type(value) is not int or not lowest <= value <= INT32_MAX:
        raise MalformedError(
            f"{name} {shown(value)} is no whole number from {lowest} to {INT32_MAX}"
        )
    return value


def string(holder: dict[str, Any], name: str) -> str:
    value = holder.get(name, "")
    if not isinstance(value, str):
        raise MalformedError(f"{name} {shown(value)} is no text")
    return value


def dns_name(text: str, what: str) -> str:
    if not _DNS.fullmatch(text):
        raise MalformedError(f"{what} {text!r} is no name that Kubernetes allows")
    return text


def shown(value: Any) -> str:
    """Return a value for a message, cut where it is long."""
    text = value if isinstance(value, str) else json.dumps(value, default=str)
    return text if len(text) <= 120 else f"{text[:120]}…"
