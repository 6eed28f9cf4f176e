"""Label selectors, node selectors, taints."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hami_sandbox.kube_scheduler import selection
from hami_sandbox.kube_scheduler.selection import (
    LabelSelector,
    NodeSelector,
    NodeTerm,
    Requirement,
    Taint,
    Toleration,
)

LABELS = {"zone": "a", "gpus": "8", "empty": ""}


@pytest.mark.parametrize(
    ("operator", "key", "values", "met"),
    [
        ("In", "zone", ("a", "b"), True),
        ("In", "zone", ("b",), False),
        ("In", "none", ("a",), False),
        ("In", "none", ("",), False),
        ("NotIn", "zone", ("b",), True),
        ("NotIn", "zone", ("a",), False),
        ("NotIn", "none", ("a",), True),
        ("Exists", "empty", (), True),
        ("Exists", "none", (), False),
        ("DoesNotExist", "none", (), True),
        ("DoesNotExist", "zone", (), False),
        ("Gt", "gpus", ("7",), True),
        ("Gt", "gpus", ("8",), False),
        ("Lt", "gpus", ("9",), True),
        ("Lt", "zone", ("9",), False),
        ("Gt", "none", ("0",), False),
        ("Gt", "gpus", ("1", "2"), False),
        ("Like", "zone", ("a",), False),
    ],
)
def test_a_requirement(operator: str, key: str, values: tuple[str, ...], met: bool) -> None:
    requirement = Requirement(key, operator, values)
    selector = LabelSelector(match_expressions=(requirement,))
    assert selection.selects(selector, LABELS) is met
    term = NodeTerm(match_expressions=(requirement,))
    assert selection.selects_node(NodeSelector((term,)), "n", LABELS) is met


def test_no_selector_selects_none_and_an_empty_one_all() -> None:
    assert not selection.selects(None, LABELS)
    assert selection.selects(LabelSelector(), LABELS)
    assert not selection.selects_node(NodeSelector(), "n", LABELS)
    assert not selection.selects_node(NodeSelector((NodeTerm(),)), "n", LABELS)


def test_one_term_is_enough_and_a_node_has_a_name() -> None:
    wrong = NodeTerm(match_expressions=(Requirement("zone", "In", ("b",)),))
    named = NodeTerm(match_fields=(Requirement("metadata.name", "In", ("n",)),))
    assert selection.selects_node(NodeSelector((wrong, named)), "n", LABELS)
    assert not selection.selects_node(NodeSelector((wrong, named)), "m", LABELS)


WORDS = st.sampled_from(["", "a", "b"])
EFFECTS = st.sampled_from(["NoSchedule", "NoExecute", "PreferNoSchedule"])


@given(key=st.sampled_from(["a", "b"]), value=WORDS, effect=EFFECTS)
def test_a_taint_is_borne_by_who_names_it_or_takes_all(key: str, value: str, effect: str) -> None:
    taint = Taint(key, value, effect)
    bearing = [
        Toleration(key, "Equal", value, effect),
        Toleration(key, None, value, None),
        Toleration(key, "Exists", None, effect),
        Toleration(None, "Exists", None, None),
    ]
    assert all(toleration.tolerates(taint) for toleration in bearing)
    refusing = [
        Toleration("c", "Exists", None, effect),
        Toleration(key, "Equal", f"{value}x", effect),
        Toleration(key, "Exists", None, f"{effect}x"),
        Toleration(None, "Equal", value, None),
    ]
    assert not selection.tolerates(refusing, taint)
    kept_out = effect != "PreferNoSchedule"
    assert selection.tolerates_all(refusing, [taint]) is not kept_out
    assert selection.tolerates_all(bearing, [taint, taint])
