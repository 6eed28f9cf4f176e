"""HAMi's config.json as text: our node's entry and its keys.

An object stays the list of its pairs until it is known to be ours: a key that is written twice, or
that is unknown, is an error in our own entry and ignored in another node's.
"""

from __future__ import annotations

import json
import math
from typing import NamedTuple

import msgspec

from hami.vendors import config_file
from hami.vendors.config_file import ConfigError
from hami.wire import errors as wire_errors

#: Many times what the largest cluster writes, and still read within a second.
LONGEST = 8 * 1024 * 1024

_LIST = "nodeconfig"
_DIGITS = 18
_START = 'write {"nodeconfig": [{"name": "<node>", "devicesplitcount": 10}]}'


class Object(msgspec.Struct, frozen=True):
    pairs: list[tuple[str, object]]

    def __repr__(self) -> str:
        # For messages, which do not show the values.
        return "{" + ", ".join(f"{key!r}: …" for key, _ in self.pairs) + "}"


class Found(NamedTuple):
    """A node's entry in the file."""

    #: Where the entry is, for messages.
    path: str
    #: None: the file has none for it.
    entry: Object | None
    #: What was ignored.
    warnings: list[str]


def find(text: str, *, source: str, node: str) -> Found:
    """Find a node's entry; `source` names the text in errors and warnings."""
    entries, warnings = _entries(text, source)
    ours: list[tuple[str, Object]] = []
    for index, item in enumerate(entries):
        path = f"{_LIST}[{index}]"
        name = _name(item)
        if isinstance(item, Object) and name == node:
            ours.append((path, item))
        elif name is None:
            warnings.append(f"{source}: {path}: has no name, so no node reads it")
    if len(ours) > 1:
        raise ConfigError(
            source=source,
            place=" and ".join(path for path, _ in ours),
            value=node,
            rule="has more than one entry",
            remedy="write one entry per node",
        )
    path, entry = ours[0] if ours else ("", None)
    return Found(path, entry, warnings)


def _entries(text: str, source: str) -> tuple[list[object], list[str]]:
    """Return the nodes' entries, and warnings about other keys beside them."""
    read = _json(text, source)
    if not isinstance(read, Object):
        raise ConfigError(
            source=source, place="", value=read, rule="is not a JSON object", remedy=_START
        )
    lists = [value for key, value in read.pairs if key.lower() == _LIST]
    others = [key for key, _ in read.pairs if key.lower() != _LIST]
    if len(lists) > 1:
        raise ConfigError(
            source=source, place=_LIST, rule="is written twice", remedy="make one list of both"
        )
    if not lists and others:
        raise ConfigError(
            source=source,
            place=others[0],
            rule=f"no such key, and no {_LIST} beside it{config_file.nearest(others[0], [_LIST])}",
            remedy=_START,
        )
    entries = lists[0] if lists and lists[0] is not None else []
    if not isinstance(entries, list):
        raise ConfigError(
            source=source,
            place=_LIST,
            value=entries,
            rule="must be a list of nodes' entries",
            remedy=_START,
        )
    warnings = [
        f"{source}: {key}: no such key, ignored{config_file.nearest(key, [_LIST])}"
        for key in others
    ]
    return entries, warnings


def _json(text: str, source: str) -> object:
    if len(text) > LONGEST:
        raise ConfigError(
            source=source,
            place="",
            rule=f"the file has more than {LONGEST} characters",
            remedy="check that this is the file with the settings by node",
        )
    try:
        return json.loads(
            text,
            object_pairs_hook=Object,
            parse_int=_whole,
            parse_float=_finite,
            parse_constant=str,
        )
    except json.JSONDecodeError as error:
        raise ConfigError(
            source=source,
            place=f"line {error.lineno}, column {error.colno}",
            rule=f"the file is not JSON: {error.msg}",
            remedy="correct that place, for example with `jq . FILE`",
        ) from error
    except RecursionError as error:
        raise ConfigError(
            source=source, place="", rule="the file is nested too deeply", remedy=_START
        ) from error


# A number that is too large stays text, which no setting accepts: in another node's entry it does
# no harm.


def _whole(text: str) -> int | str:
    return int(text) if len(text) <= _DIGITS else text


def _finite(text: str) -> float | str:
    number = float(text)
    return number if math.isfinite(number) else text


def _name(item: object) -> str | None:
    """Return the node that an entry is for; None: it names none."""
    if not isinstance(item, Object):
        return None
    names = [value for key, value in item.pairs if key.lower() == "name"]
    return names[0] if len(names) == 1 and isinstance(names[0], str) else None


def keys(item: object, *, source: str, path: str, known: tuple[str, ...]) -> dict[str, object]:
    """Return an object as a dict by lower-case keys; every key must be known and unique."""
    if not isinstance(item, Object):
        raise ConfigError(
            source=source,
            place=path,
            value=item,
            rule="must be an object of keys and values",
            remedy=f"write {{…}} with keys of {', '.join(known)}",
        )
    data: dict[str, object] = {}
    for written, value in item.pairs:
        key = written.lower()
        if key not in known:
            raise ConfigError(
                source=source,
                place=f"{path}.{wire_errors.shorten(written)[1:-1]}",
                value=value,
                rule=f"is the value of an unknown key{config_file.nearest(written, known)}",
                remedy=f"remove it, or write one of {', '.join(known)}",
            )
        if key in data:
            raise ConfigError(
                source=source,
                place=f"{path}.{key}",
                rule="is written twice",
                remedy="keep one; keys ignore case",
            )
        data[key] = value
    return data
