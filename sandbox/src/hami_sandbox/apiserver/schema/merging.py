"""Two objects of one type merged field by field, and fields taken out of one."""

from __future__ import annotations

import copy
from typing import Any

from hami_sandbox.apiserver.schema import field_paths
from hami_sandbox.apiserver.schema.field_paths import Path, Paths
from hami_sandbox.apiserver.schema.types import Shape


def merged(shape: Shape, old: Any, wish: Any) -> Any:
    """Return `old` with everything that `wish` names; neither is changed, parts may be shared."""
    if shape.what == "list" and isinstance(old, list) and isinstance(wish, list):
        if not (shape.keys or shape.is_set):
            return wish
        return _merged_list(shape, old, wish)
    divisible = shape.what in {"struct", "map", "any"} and not shape.atomic
    if divisible and isinstance(old, dict) and isinstance(wish, dict):
        result = dict(old)
        for name, value in wish.items():
            inner = shape.field(name) or shape
            result[name] = merged(inner, old[name], value) if name in old else value
        return result
    return wish


def _merged_list(shape: Shape, old: list[Any], wish: list[Any]) -> list[Any]:
    """Keep the order of the wish, and what only the old list has near its place."""
    before = {field_paths.key_of(shape, item): item for item in old}
    wanted = {field_paths.key_of(shape, item): item for item in wish}
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


def pruned(shape: Shape, value: Any, gone: Paths) -> Any:
    """Return the value without the fields at these paths."""
    result = copy.deepcopy(value)
    _prune(shape, result, (), gone)
    return result


def _prune(shape: Shape, value: Any, path: Path, gone: Paths) -> None:
    if field_paths.is_leaf(shape, value):
        return
    if shape.what == "list":
        kept = []
        for item in value:
            below = (*path, field_paths.key_of(shape, item))
            if below not in gone:
                _prune(shape.of, item, below, gone)
                kept.append(item)
        value[:] = kept
        return
    for name in tuple(value):
        below = (*path, f"f:{name}")
        if below in gone:
            del value[name]
            continue
        inner = shape.field(name)
        if inner is not None:
            was_leaf = field_paths.is_leaf(inner, value[name])
            _prune(inner, value[name], below, gone)
            # What lost its last part goes as well, unless Go always writes it.
            if not was_leaf and not value[name] and not inner.always:
                del value[name]
