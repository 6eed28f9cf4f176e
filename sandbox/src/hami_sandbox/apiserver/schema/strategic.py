"""Strategic merge patch: lists merged by their keys, and directives."""

from __future__ import annotations

from typing import Any

from hami_sandbox.apiserver.refusals import Object
from hami_sandbox.apiserver.schema.schema import ANY, Shape

_DIRECTIVE = "$patch"
_RETAIN = "$retainKeys"
_DELETE_FROM = "$deleteFromPrimitiveList/"
_ORDER = "$setElementOrder/"


class StrategicError(ValueError):
    """The patch is invalid for this kind."""


def merged(shape: Shape, current: Any, patch: Object) -> Object:
    """Return the current value after the patch; neither is changed, parts may be shared."""
    directive = patch.get(_DIRECTIVE)
    plain = {name: value for name, value in patch.items() if name != _DIRECTIVE}
    if directive == "replace":
        replaced: Object = without_nulls(plain)
        return replaced
    if directive == "delete":
        return {}
    if directive not in {None, "merge"}:
        raise StrategicError(f"unknown patch type: {directive} in map: {_go_text(patch)}")
    result: Object = dict(current) if isinstance(current, dict) else {}
    if _RETAIN in plain:
        wanted = plain.pop(_RETAIN)
        result = {name: value for name, value in result.items() if name in wanted}
    orders = {
        name.removeprefix(_ORDER): plain.pop(name)
        for name in tuple(plain)
        if name.startswith(_ORDER)
    }
    for name, value in plain.items():
        if name.startswith(_DELETE_FROM):
            _delete_from(result, name.removeprefix(_DELETE_FROM), value)
        elif value is None:
            result.pop(name, None)
        else:
            field = shape.field(name) or ANY
            result[name] = _merged_value(field, result.get(name), value)
    for name, order in orders.items():
        field = shape.field(name) or ANY
        if isinstance(result.get(name), list) and field.merges and isinstance(order, list):
            result[name] = _ordered(field, result[name], order)
    return result


def _merged_value(shape: Shape, current: Any, patch: Any) -> Any:
    if isinstance(patch, dict):
        return merged(shape, current, patch)
    if not isinstance(patch, list):
        return patch
    if shape.what != "list" or not shape.merges:
        return _plain_elements(patch)
    before = current if isinstance(current, list) else []
    if not shape.merge_key:
        return [*before, *(item for item in patch if item not in before)]
    return _merged_list(shape, before, patch)


def _merged_list(shape: Shape, current: list[Any], patch: list[Any]) -> list[Any]:
    key = shape.merge_key
    for element in patch:
        if not isinstance(element, dict):
            raise StrategicError(f"expected objects in the list, found {_go_text(element)}")
    if any(_is_bare(element, "replace") for element in patch):
        return [without_nulls(each) for each in patch if not _is_bare(each, "replace")]
    result = list(current)
    for element in patch:
        if key not in element:
            raise StrategicError(
                f"map: {_go_text(element)} does not contain declared merge key: {key}"
            )
        places = [
            place
            for place, item in enumerate(result)
            if isinstance(item, dict) and item.get(key) == element[key]
        ]
        directive = element.get(_DIRECTIVE)
        if directive == "delete":
            result = [item for place, item in enumerate(result) if place not in places]
        elif places:
            result[places[0]] = merged(shape.of, result[places[0]], element)
        else:
            result.append(merged(shape.of, {}, element))
    return result


def _ordered(shape: Shape, items: list[Any], order: list[Any]) -> list[Any]:
    """Put a list's elements in the order asked for; others stay behind their neighbour."""
    key = shape.merge_key

    def named(item: Any) -> Any:
        return item.get(key) if key and isinstance(item, dict) else item

    wanted = [named(each) for each in order]
    listed = sorted(
        (item for item in items if named(item) in wanted),
        key=lambda item: wanted.index(named(item)),
    )
    result = list(listed)
    for place, item in enumerate(items):
        if named(item) in wanted:
            continue
        before = items[place - 1] if place else None
        result.insert(result.index(before) + 1 if before in result else 0, item)
    return result


def _delete_from(result: Object, name: str, values: Any) -> None:
    found = result.get(name)
    if isinstance(found, list) and isinstance(values, list):
        result[name] = [item for item in found if item not in values]


def _is_bare(element: Object, directive: str) -> bool:
    return element.get(_DIRECTIVE) == directive and len(element) == 1


def _plain_elements(patch: list[Any]) -> list[Any]:
    """Return a list that replaces another, without directives in it."""
    return [
        without_nulls(each) if isinstance(each, dict) else each
        for each in patch
        if not (isinstance(each, dict) and _DIRECTIVE in each)
    ]


def without_nulls(value: Any) -> Any:
    """Return a value without nulls and directives."""
    if isinstance(value, dict):
        return {
            name: without_nulls(inner)
            for name, inner in value.items()
            if inner is not None and not name.startswith("$")
        }
    return [without_nulls(inner) for inner in value] if isinstance(value, list) else value


def _go_text(value: Any) -> str:
    """Write a value as Go prints a map."""
    if isinstance(value, dict):
        return f"map[{' '.join(f'{name}:{_go_text(value[name])}' for name in sorted(value))}]"
    return str(value)
