"""The patch applier of these tests: examples of RFC 6902, and what it forbids."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.admission import json_patch


def op(kind: str, path: str, *value: Any) -> dict[str, Any]:
    return {"op": kind, "path": path, **({"value": value[0]} if value else {})}


@pytest.mark.parametrize(
    ("before", "operation", "after"),
    [
        pytest.param({"a": 1}, op("add", "/b", 2), {"a": 1, "b": 2}, id="a new member"),
        pytest.param({"a": 1}, op("add", "/a", None), {"a": None}, id="add over a member"),
        pytest.param({"a": [1, 2]}, op("add", "/a/1", 9), {"a": [1, 9, 2]}, id="into a list"),
        pytest.param({"a": [1]}, op("add", "/a/1", 2), {"a": [1, 2]}, id="behind a list"),
        pytest.param({"a": []}, op("add", "/a/-", [1]), {"a": [[1]]}, id="to its end"),
        pytest.param({"a": {"b": 1}}, op("remove", "/a/b"), {"a": {}}, id="remove a member"),
        pytest.param({"a": [1, 2]}, op("remove", "/a/0"), {"a": [2]}, id="remove from a list"),
        pytest.param({"a": [1, 2]}, op("replace", "/a/0", 9), {"a": [9, 2]}, id="in a list"),
        pytest.param({"": {"a": 1}}, op("replace", "//a", 2), {"": {"a": 2}}, id="empty key"),
        pytest.param({}, op("add", "/x~1y~0z", 1), {"x/y~z": 1}, id="escapes"),
        pytest.param({"~1": 1}, op("remove", "/~01"), {}, id="an escaped tilde stays one"),
    ],
)
def test_an_operation_does_what_the_rfc_says(
    before: Any, operation: dict[str, Any], after: Any
) -> None:
    assert json_patch.apply(before, [operation]) == after


@pytest.mark.parametrize(
    "operation",
    [
        op("add", "/missing/a", 1),
        op("add", "/list/3", 1),
        op("add", "/list/01", 1),
        op("add", "/list/-1", 1),
        op("add", "/list/x", 1),
        op("add", "/text/a", 1),
        op("add", "/null/a", 1),
        op("add", "/a~2", 1),
        op("add", "/a~", 1),
        op("add", "a", 1),
        op("add", "", 1),
        op("add", "/a"),
        op("remove", "/missing"),
        op("remove", "/list/2"),
        op("remove", "/list/-"),
        op("remove", "/text", 1),
        op("replace", "/missing", 1),
        op("replace", "/list/2", 1),
        op("test", "/text", "x"),
        {"op": "add", "path": "/a", "value": 1, "from": "/text"},
        {},
    ],
    ids=str,
)
def test_what_the_rfc_forbids_is_an_error(operation: dict[str, Any]) -> None:
    document = {"list": [1, 2], "text": "x", "null": None}
    with pytest.raises(json_patch.PatchError):
        json_patch.apply(document, [operation])


def test_the_document_and_the_patch_stay_as_they_were() -> None:
    document: dict[str, Any] = {"a": {}}
    patch = [op("add", "/a/b", []), op("add", "/a/b/-", 1)]
    assert json_patch.apply(document, patch) == {"a": {"b": [1]}}
    assert document == {"a": {}}
    assert patch[0]["value"] == []
