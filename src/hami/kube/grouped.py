"""What is said of an object, and many such sayings as one."""

from __future__ import annotations

from typing import NamedTuple

import msgspec

_NAMES = 5
_FIRST_MESSAGE = 600


class Said(msgspec.Struct, frozen=True):
    """An event, without when and how often."""

    namespace: str
    name: str
    uid: str
    kind: str
    type: str
    reason: str
    message: str


class _Key(NamedTuple):
    namespace: str
    type: str
    reason: str


class _Group(msgspec.Struct):
    first: Said
    #: The objects, in order; a dict is an ordered set.
    names: dict[str, None]


class Groups:
    """Sayings of the same kind about objects of one namespace."""

    def __init__(self) -> None:
        self._groups: dict[_Key, _Group] = {}

    def add(self, said: Said) -> None:
        key = _Key(said.namespace, said.type, said.reason)
        self._groups.setdefault(key, _Group(said, {})).names[said.name] = None

    def take(self) -> list[Said]:
        """Return one saying for each group, and begin anew."""
        groups, self._groups = self._groups, {}
        return [_as_one(group) for group in groups.values()]


def _as_one(group: _Group) -> Said:
    first, names = group.first, list(group.names)
    if len(names) == 1:
        return first
    told = ", ".join(names[:_NAMES]) + (", …" if len(names) > _NAMES else "")
    what = "pods" if first.kind == "Pod" else "objects"
    message = f"{len(names)} {what}: {first.message[:_FIRST_MESSAGE]} ({told})"
    if not first.namespace:
        # Of objects without a namespace, such as nodes, the first one bears it.
        return msgspec.structs.replace(first, message=message)
    return msgspec.structs.replace(
        first, kind="Namespace", name=first.namespace, uid="", message=message
    )
