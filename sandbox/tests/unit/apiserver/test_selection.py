"""Selectors: objects that they select, and selectors that are refused."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hami_sandbox.apiserver import selectors
from hami_sandbox.apiserver.refusals import Object, Refusal
from hami_sandbox.apiserver.selectors import Selection
from sandbox.tests.unit.apiserver.making import config_map, kind

KEYS = st.sampled_from(["a", "b", "x.example/c"])
VALUES = st.sampled_from(["", "1", "2", "other"])
LABELS = st.dictionaries(KEYS, VALUES)


def selected(text: str, found: dict[str, str]) -> bool:
    test = selectors.parse_labels(text)
    return True if test is None else test(found)


@settings(max_examples=40)
@given(KEYS, st.lists(VALUES, min_size=1, max_size=3), LABELS)
def test_sets_hold_what_they_name(key: str, values: list[str], found: dict[str, str]) -> None:
    listed = ",".join(values)
    assert selected(f"{key} in ({listed})", found) == (key in found and found[key] in values)
    assert selected(f"{key} notin ({listed})", found) == (found.get(key) not in values)
    assert selected(key, found) == (key in found)
    assert selected(f"!{key}", found) == (key not in found)


@settings(max_examples=40)
@given(st.lists(st.tuples(KEYS, st.sampled_from(["=", "==", "!="]), VALUES), min_size=1), LABELS)
def test_all_conditions_must_hold(
    conditions: list[tuple[str, str, str]], found: dict[str, str]
) -> None:
    text = ",".join(f"{key}{operator}{value}" for key, operator, value in conditions)
    expected = all(
        (found.get(key) != value) if operator == "!=" else (found.get(key) == value)
        for key, operator, value in conditions
    )
    assert selected(text, found) == expected


@settings(max_examples=40)
@given(st.integers(-5, 5), st.sampled_from(["-3", "0", "4", "x", ""]))
def test_numbers_are_compared_as_numbers(bound: int, value: str) -> None:
    number = int(value) if value.lstrip("-").isdigit() else None
    # A sign is no part of a label's value, but of the number to compare with it is.
    assert selected(f"a>{bound}", {"a": value}) == (number is not None and number > bound)
    assert selected(f"a<{bound}", {"a": value}) == (number is not None and number < bound)


@pytest.mark.parametrize(
    "text",
    ["a in (b", "a in b", "=b", "a=b=c", "a gt 1", "a/b/c=d", "a=b,,c", "a=b,", ",a", "a>x", "!"],
)
def test_a_label_selector_without_sense_is_refused(text: str) -> None:
    with pytest.raises(Refusal) as refused:
        selectors.parse_labels(text)
    assert refused.value.status == 400
    assert text in refused.value.message


@settings(max_examples=40)
@given(st.text(alphabet="ab,=!<>() in\\", max_size=12), LABELS)
def test_any_text_is_a_selector_or_refused(text: str, found: dict[str, str]) -> None:
    with contextlib.suppress(Refusal):  # nothing else is ever raised
        assert selected(text, found) in {True, False}


def pod(**parts: Object) -> Object:
    return {"kind": "Pod", "apiVersion": "v1", "metadata": {"name": "p", "namespace": "n"}, **parts}


@pytest.mark.parametrize(
    ("selector", "expected"),
    [
        ("", True),
        ("metadata.name=p", True),
        ("metadata.name=q", False),
        ("metadata.name!=q,metadata.namespace==n", True),
        ("metadata.namespace=other", False),
        ("metadata.name=p,metadata.name=q", False),
        ("spec.nodeName=", True),
        ("spec.nodeName!=", False),
        ("spec.hostNetwork=false", True),
        ("status.phase=Running,spec.nodeName=", True),
    ],
)
def test_fields_select(selector: str, *, expected: bool) -> None:
    by = Selection(kind("Pod"), field_selector=selector)
    assert by.matches(pod(spec={}, status={"phase": "Running"})) is expected


def test_a_comma_in_a_value_is_written_with_a_backslash() -> None:
    (term,) = selectors.parse_fields(kind("Pod"), r"spec.nodeName=a\,b\=c\\d")
    assert (term.field, term.value, term.equal) == ("spec.nodeName", r"a,b=c\d", True)


@pytest.mark.parametrize("selector", ["spec.nodeName", "spec.nodeName>1", "spec.other=1", "=x"])
def test_a_field_selector_without_sense_is_refused(selector: str) -> None:
    with pytest.raises(Refusal) as refused:
        selectors.parse_fields(kind("Pod"), selector)
    assert refused.value.status == 400


def test_a_namespace_of_the_path_is_not_widened_by_a_field() -> None:
    by = Selection(kind("ConfigMap"), namespace="n", field_selector="metadata.namespace=m")
    assert not by.matches(config_map("a", "n"))
    assert not by.matches(config_map("a", "m"))


def test_an_events_source_is_whoever_reported_it() -> None:
    of = selectors.value("source")
    assert of({"source": {"component": "a"}, "reportingComponent": "b"}) == "a"
    assert of({"source": {}, "reportingComponent": "b"}) == "b"
