"""Sets of fields: written, compared, merged, removed.

A path is a tuple of elements, each written as in managedFields (FieldsV1): `f:name` for a field,
`k:{"name":"a"}` for a list's element with that key, `v:"x"` for a value in a set.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Iterable, Iterator
from typing import Any

from hami_sandbox.apiserver.refusals import Object
from hami_sandbox.apiserver.schema.schema import ANY, Shape

Path = tuple[str, ...]
Paths = frozenset[Path]

_MISSING = object()


class Difference:
    """Paths that were added, changed or removed between two objects."""

    __slots__ = ("added", "modified", "removed")

    def __init__(self) -> None:
        self.added: set[Path] = set()
        self.modified: set[Path] = set()
        self.removed: set[Path] = set()


def key_of(shape: Shape, element: Any) -> str:
    """Return the path element of one element of a list that is a set or has keys."""
    if shape.is_set:
        return f"v:{_compact(element)}"
    keys = {}
    for key in shape.keys:
        field = shape.of.field(key)
        value = element.get(key, field.absent if field else None)
        if value is not None:
            keys[key] = value
    return f"k:{_compact(dict(sorted(keys.items())))}"


def is_leaf(shape: Shape, value: Any) -> bool:
    """Return whether apply treats the value as one, without parts."""
    if shape.what in {"struct", "map"}:
        return shape.atomic or not isinstance(value, dict) or not value
    if shape.what == "list":
        return not (shape.keys or shape.is_set) or not isinstance(value, list) or not value
    if shape.what == "any":
        return not isinstance(value, dict) or not value
    return True


def children(shape: Shape, value: Any) -> Iterator[tuple[str, Shape, Any]]:
    """Yield path element, type and value of the parts of what is no leaf."""
    if shape.what == "list":
        for item in value:
            yield key_of(shape, item), shape.of, item
        return
    for name, inner in value.items():
        yield f"f:{name}", shape.field(name) or ANY, inner


def owned(shape: Shape, value: Any) -> Paths:
    """Return the fields that an applied object names."""
    found: set[Path] = set()
    _collect(shape, value, (), found)
    return frozenset(found)


def _collect(shape: Shape, value: Any, path: Path, found: set[Path]) -> None:
    if is_leaf(shape, value):
        if path:
            found.add(path)
        return
    for element, inner, part in children(shape, value):
        below = (*path, element)
        # An element is owned itself, and so is an entry of a map; a struct only by its fields.
        if shape.what != "struct":
            found.add(below)
        _collect(inner, part, below, found)


def difference(shape: Shape, old: Any, new: Any) -> Difference:
    """Compare two objects of one type."""
    found = Difference()
    _compare(shape, old, new, (), found)
    return found


def _compare(shape: Shape, old: Any, new: Any, path: Path, found: Difference) -> None:
    if old is _MISSING or new is _MISSING:
        _compare_one_sided(shape, old, new, path, found)
        return
    if is_leaf(shape, old) and is_leaf(shape, new):
        if old != new:
            found.modified.add(path)
        return
    before = {element: (inner, part) for element, inner, part in _parts(shape, old)}
    for element, inner, part in _parts(shape, new):
        # What Go always writes was there before, and empty: then only its parts are new.
        empty = ([] if inner.what == "list" else {}) if inner.always else _MISSING
        _, was = before.pop(element, (None, empty))
        if was != part or was is _MISSING:
            _compare(inner, was, part, (*path, element), found)
    for element, (inner, part) in before.items():
        _compare(inner, part, _MISSING, (*path, element), found)


def _compare_one_sided(shape: Shape, old: Any, new: Any, path: Path, found: Difference) -> None:
    value, changed = (new, found.added) if old is _MISSING else (old, found.removed)
    changed.add(path)
    for element, inner, part in _parts(shape, value):
        before, after = (_MISSING, part) if old is _MISSING else (part, _MISSING)
        _compare_one_sided(inner, before, after, (*path, element), found)


def _parts(shape: Shape, value: Any) -> Iterator[tuple[str, Shape, Any]]:
    return iter(()) if is_leaf(shape, value) else children(shape, value)


def encode(paths: Iterable[Path]) -> Object:
    """Write a set of paths as FieldsV1."""
    tree: Object = {}
    for path in sorted(paths):
        node = tree
        for element in path[:-1]:
            if element not in node:
                node[element] = {}
            node = node[element]
        node.setdefault(path[-1], {})["."] = {}
    _drop_dots(tree)
    return tree


def _drop_dots(node: Object) -> None:
    for element, below in node.items():
        if element != ".":
            if len(below) == 1 and "." in below:
                del below["."]
            _drop_dots(below)


def decode(fields: Any) -> Paths:
    """Read FieldsV1; invalid entries are left out."""
    found: set[Path] = set()
    if isinstance(fields, dict):
        _read(fields, (), found)
    return frozenset(found)


def _read(node: Object, path: Path, found: set[Path]) -> None:
    for element, below in node.items():
        if element == ".":
            found.add(path)
        elif isinstance(below, dict) and below:
            _read(below, (*path, element), found)
        else:
            found.add((*path, element))


def text(path: Path) -> str:
    """Write a path as conflicts name it: `.spec.containers[name="a"].image`."""
    written = []
    for element in path:
        sort, _, rest = element.partition(":")
        if sort == "k":
            keys = [f"{key}={_compact(value)}" for key, value in json.loads(rest).items()]
            written.append(f"[{','.join(keys)}]")
        else:
            written.append(f".{rest}" if sort == "f" else f"[={rest}]")
    return "".join(written)


def _compact(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


def merged(shape: Shape, old: Any, new: Any) -> Any:
    """Return `old` with all fields of `new`; neither is changed, parts may be shared."""
    if shape.what == "list" and isinstance(old, list) and isinstance(new, list):
        if not (shape.keys or shape.is_set):
            return new
        return _merged_list(shape, old, new)
    divisible = shape.what in {"struct", "map", "any"} and not shape.atomic
    if divisible and isinstance(old, dict) and isinstance(new, dict):
        result = dict(old)
        for name, value in new.items():
            inner = shape.field(name) or shape
            result[name] = merged(inner, old[name], value) if name in old else value
        return result
    return new


def _merged_list(shape: Shape, old: list[Any], new: list[Any]) -> list[Any]:
    """Keep the order of the new list; elements of the old list stay near their place."""
    before = {key_of(shape, item): item for item in old}
    wanted = {key_of(shape, item): item for item in new}
    result: dict[str, Any] = {}
    waiting = list(wanted)
    for key, item in before.items():
        if key not in wanted:
            result[key] = item
            continue
        while waiting and key not in result:
            following = waiting.pop(0)
            value = wanted[following]
            result[following] = (
                merged(shape.of, before[following], value) if following in before else value
            )
    for key in waiting:
        result[key] = merged(shape.of, before[key], wanted[key]) if key in before else wanted[key]
    return list(result.values())


def pruned(shape: Shape, value: Any, dropped: Paths) -> Any:
    """Return the value without the fields at these paths."""
    result = copy.deepcopy(value)
    _prune(shape, result, (), dropped)
    return result


def _prune(shape: Shape, value: Any, path: Path, dropped: Paths) -> None:
    if is_leaf(shape, value):
        return
    if shape.what == "list":
        kept = []
        for item in value:
            below = (*path, key_of(shape, item))
            if below not in dropped:
                _prune(shape.of, item, below, dropped)
                kept.append(item)
        value[:] = kept
        return
    for name in tuple(value):
        below = (*path, f"f:{name}")
        if below in dropped:
            del value[name]
            continue
        inner = shape.field(name)
        if inner is not None:
            was_leaf = is_leaf(inner, value[name])
            _prune(inner, value[name], below, dropped)
            # What lost its last part goes as well, unless Go always writes it.
            if not was_leaf and not value[name] and not inner.always:
                del value[name]
