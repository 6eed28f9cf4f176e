"""Label selectors: what they select, and the same as the text of a query."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hami_sandbox import api_objects
from hami_sandbox.apiserver import selectors as query_labels

Object = dict[str, Any]

KEYS = st.sampled_from(["a", "b", "example.com/c"])
VALUES = st.sampled_from(["1", "2", "x-y"])
EXPRESSIONS = st.one_of(
    st.fixed_dictionaries(
        {
            "key": KEYS,
            "operator": st.sampled_from(["In", "NotIn"]),
            "values": st.lists(VALUES, min_size=1),
        }
    ),
    st.fixed_dictionaries({"key": KEYS, "operator": st.sampled_from(["Exists", "DoesNotExist"])}),
)
SELECTORS = st.fixed_dictionaries(
    {"matchLabels": st.dictionaries(KEYS, VALUES), "matchExpressions": st.lists(EXPRESSIONS)}
)


@pytest.mark.parametrize(
    ("selector", "query", "labels", "matches"),
    [
        (None, "", {}, True),
        ({}, "", {"a": "1"}, True),
        ({"matchLabels": {"a": "1"}}, "a=1", {"a": "1"}, True),
        ({"matchLabels": {"a": "1", "b": "2"}}, "a=1,b=2", {"a": "1"}, False),
        (
            {"matchExpressions": [{"key": "a", "operator": "In", "values": ["1", "2"]}]},
            "a in (1,2)",
            {"a": "2"},
            True,
        ),
        (
            {"matchExpressions": [{"key": "a", "operator": "NotIn", "values": ["1"]}]},
            "a notin (1)",
            {},
            True,
        ),
        ({"matchExpressions": [{"key": "a", "operator": "Exists"}]}, "a", {}, False),
        ({"matchExpressions": [{"key": "a", "operator": "DoesNotExist"}]}, "!a", {}, True),
    ],
)
def test_label_selectors(
    selector: Object | None, query: str, labels: dict[str, str], matches: bool
) -> None:
    assert api_objects.matches(selector, labels) is matches
    assert api_objects.as_query(selector) == query


@given(SELECTORS, st.dictionaries(KEYS, VALUES))
def test_an_object_and_a_query_select_the_same(selector: Object, labels: dict[str, str]) -> None:
    test = query_labels.parse_labels(api_objects.as_query(selector))

    assert api_objects.matches(selector, labels) is (test is None or test(labels))


def test_an_operator_of_others_selects_nothing() -> None:
    wrong = {"matchExpressions": [{"key": "a", "operator": "Gt", "values": ["1"]}]}
    assert not api_objects.matches(wrong, {"a": "2"})
