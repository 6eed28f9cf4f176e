"""JSON Patch (RFC 6902) applied as strictly as the API server does it.

Only `add`, `remove` and `replace`: the product writes no other. Whatever the RFC forbids is a
`PatchError`, so that a test which applies a patch also shows that it can be applied.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Iterable, Mapping
from typing import Any

_INDEX = re.compile(r"0|[1-9][0-9]*", re.ASCII)
_BAD_ESCAPE = re.compile(r"~(?![01])")
_END = "-"


class PatchError(Exception):
    """The operation breaks a rule of the RFC, or does not fit the document."""


def apply(document: Any, patch: Iterable[Mapping[str, Any]]) -> Any:
    """Return a copy of the document with all operations applied, one after the other."""
    result = copy.deepcopy(document)
    for operation in patch:
        _apply_one(result, operation)
    return result


def tokens(pointer: str) -> list[str]:
    """Split a JSON Pointer (RFC 6901) into its keys."""
    if not pointer.startswith("/"):
        raise PatchError(f"{pointer!r} does not begin with /, or means the whole document")
    if _BAD_ESCAPE.search(pointer):
        raise PatchError(f"{pointer!r} has a ~ that is neither ~0 nor ~1")
    return [part.replace("~1", "/").replace("~0", "~") for part in pointer[1:].split("/")]


def _apply_one(document: Any, operation: Mapping[str, Any]) -> None:
    kind = operation.get("op")
    wanted = {"op", "path"} if kind == "remove" else {"op", "path", "value"}
    if kind not in ("add", "remove", "replace") or set(operation) != wanted:
        raise PatchError(f"{operation} is no operation")
    *parents, last = tokens(operation["path"])
    place = document
    for key in parents:
        place = _child(place, key)
    if kind == "add":
        _add(place, last, copy.deepcopy(operation["value"]))
        return
    _child(place, last)  # it must be there
    at = int(last) if isinstance(place, list) else last
    if kind == "remove":
        del place[at]
    else:
        place[at] = copy.deepcopy(operation["value"])


def _child(place: Any, key: str) -> Any:
    if isinstance(place, dict) and key in place:
        return place[key]
    if isinstance(place, list) and _INDEX.fullmatch(key) and int(key) < len(place):
        return place[int(key)]
    raise PatchError(f"there is nothing at {key!r}")


def _add(place: Any, key: str, value: Any) -> None:
    if isinstance(place, dict):
        place[key] = value
    elif isinstance(place, list) and key == _END:
        place.append(value)
    elif isinstance(place, list) and _INDEX.fullmatch(key) and int(key) <= len(place):
        place.insert(int(key), value)
    else:
        raise PatchError(f"nothing can be added at {key!r}")
