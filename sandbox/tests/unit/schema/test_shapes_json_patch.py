"""JSON patch and merge patch, on plain data."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hami_sandbox.apiserver.schema import patches

_leaves = st.one_of(st.booleans(), st.integers(-3, 3), st.text("abc~/", max_size=3))
_values = st.recursive(
    _leaves,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.text("ab~/", max_size=2), inner, max_size=3)
    ),
    max_leaves=8,
)
_objects = st.dictionaries(st.text("ab~/", max_size=2), _values, max_size=4)
_patches = st.recursive(
    st.one_of(st.none(), _leaves, st.lists(_leaves, max_size=2)),
    lambda inner: st.dictionaries(st.text("ab~/", max_size=2), inner, max_size=3),
    max_leaves=8,
)


@pytest.mark.parametrize(
    ("target", "patch", "result"),
    [
        ({"a": "b"}, {"a": "c"}, {"a": "c"}),
        ({"a": "b"}, {"b": "c"}, {"a": "b", "b": "c"}),
        ({"a": "b", "b": "c"}, {"a": None}, {"b": "c"}),
        ({"a": ["b"]}, {"a": "c"}, {"a": "c"}),
        ({"a": {"b": "c"}}, {"a": {"b": "d", "c": None}}, {"a": {"b": "d"}}),
        ({"a": [{"b": "c"}]}, {"a": [1]}, {"a": [1]}),
        ({"a": "foo"}, {"a": {"b": {"c": None}}}, {"a": {"b": {}}}),
        ({"e": None}, {"a": 1}, {"e": None, "a": 1}),
        ({}, {"a": {"bb": {"ccc": None}}}, {"a": {"bb": {}}}),
    ],
)
def test_a_merge_patch_does_what_its_standard_says(target: Any, patch: Any, result: Any) -> None:
    assert patches.merged(target, patch) == result


@settings(max_examples=30)
@given(_objects)
def test_an_empty_merge_patch_changes_nothing(target: Any) -> None:
    assert patches.merged(target, {}) == target


@settings(max_examples=30)
@given(_objects, _patches.filter(lambda patch: isinstance(patch, dict)))
def test_a_merge_patch_twice_is_a_merge_patch_once(target: Any, patch: Any) -> None:
    before = copy.deepcopy(target)
    once = patches.merged(target, patch)
    assert patches.merged(once, patch) == once
    assert target == before


def _difference(old: Any, new: Any) -> Any:
    """Return the merge patch that makes one object of another."""
    patch: dict[str, Any] = dict.fromkeys(old.keys() - new.keys())
    for name, value in new.items():
        was = old.get(name)
        if isinstance(was, dict) and isinstance(value, dict):
            patch[name] = _difference(was, value)
        elif name not in old or was != value or type(was) is not type(value):
            # A whole new object is itself the patch, for it has no nulls.
            patch[name] = value
    return patch


@settings(max_examples=30)
@given(_objects, _objects)
def test_any_object_can_be_reached_by_a_merge_patch(old: Any, new: Any) -> None:
    assert patches.merged(old, _difference(old, new)) == new


@settings(max_examples=30)
@given(_objects, _objects)
def test_a_json_patch_of_all_members_makes_one_object_of_another(old: Any, new: Any) -> None:
    def pointer(name: str) -> str:
        return "/" + name.replace("~", "~0").replace("/", "~1")

    operations: list[Any] = [{"op": "remove", "path": pointer(name)} for name in old]
    operations += [{"op": "add", "path": pointer(n), "value": v} for n, v in new.items()]
    operations += [{"op": "test", "path": pointer(n), "value": v} for n, v in new.items()]
    assert patches.operated(old, operations) == new


def test_operations_follow_each_other_and_leave_the_original_alone() -> None:
    document = {"list": ["a", "c"], "map": {"x": 1}}
    result = patches.operated(
        document,
        [
            {"op": "add", "path": "/list/1", "value": "b"},
            {"op": "add", "path": "/list/-", "value": "d"},
            {"op": "move", "from": "/map/x", "path": "/y"},
            {"op": "copy", "from": "/list/0", "path": "/map/first"},
            {"op": "replace", "path": "/list/2", "value": "C"},
            {"op": "remove", "path": "/list/0"},
        ],
    )
    assert result == {"list": ["b", "C", "d"], "map": {"first": "a"}, "y": 1}
    assert document == {"list": ["a", "c"], "map": {"x": 1}}


@pytest.mark.parametrize(
    "operation",
    [
        {"op": "test", "path": "/one", "value": True},
        {"op": "test", "path": "/absent", "value": None},
        {"op": "replace", "path": "/absent", "value": 1},
        {"op": "remove", "path": "/list/1"},
        {"op": "add", "path": "/list/2", "value": 1},
        {"op": "add", "path": "/list/01", "value": 1},
        {"op": "add", "path": "/list/x", "value": 1},
        {"op": "add", "path": "/one/deep", "value": 1},
        {"op": "add", "path": "no-slash", "value": 1},
        {"op": "add", "path": "/x"},
        {"op": "move", "path": "/x"},
        {"op": "remove", "path": ""},
        {"op": "replace", "path": "", "value": {}},
        {"op": "dance", "path": "/one"},
        {"op": "remove"},
        "remove",
    ],
)
def test_an_operation_that_cannot_be_done_is_refused(operation: Any) -> None:
    with pytest.raises(patches.PatchError):
        patches.operated({"one": 1, "list": [0]}, [operation])
