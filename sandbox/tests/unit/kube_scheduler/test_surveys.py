"""Kept surveys of nodes equal fresh ones."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from hami_sandbox.kube_scheduler import checks, surveys
from hami_sandbox.kube_scheduler.nodes import Row
from hami_sandbox.kube_scheduler.surveys import Surveys
from sandbox.tests.unit.kube_scheduler import makers

PODS = [
    makers.pod("none"),
    makers.pod("small", requests={"cpu": "1"}),
    makers.pod("large", requests={"cpu": "3", "memory": "1Gi"}),
    makers.pod("picky", nodeSelector={"zone": "a"}),
]
NODES = {
    "none": None,
    "plain": makers.node("n"),
    "zone": makers.node("n", labels={"zone": "a"}),
    "cordoned": makers.node("n", unschedulable=True),
    "tiny": makers.node("n", cpu="1", pods="2"),
}
NAMES = st.sampled_from(["a", "b", "c"])
STEPS = st.one_of(
    st.tuples(st.just("node"), NAMES, st.sampled_from(sorted(NODES))),
    st.tuples(st.just("add"), NAMES, st.integers(0, len(PODS) - 1)),
    st.tuples(st.just("remove"), NAMES, st.integers(0, len(PODS) - 1)),
    st.tuples(st.just("ask"), NAMES, st.integers(0, len(PODS) - 1)),
)


@given(st.lists(STEPS, max_size=40))
def test_after_any_changes(steps: list[tuple[str, str, str | int]]) -> None:
    rows: dict[str, Row] = {}
    kept = Surveys(rows)
    for what, name, detail in steps:
        row = rows.setdefault(name, Row(name))
        if isinstance(detail, str):
            row.node = NODES[detail]
        elif what == "add":
            row.add(PODS[detail])
        elif what == "remove":
            row.remove(PODS[detail].uid)
        else:
            kept.of(PODS[detail])
        kept.touch(row)
    for pod in PODS:
        survey = kept.of(pod)
        there = [row for row in rows.values() if row.node is not None]
        judged = {row.name: checks.reasons(pod, row) for row in there}
        assert survey.nodes == len(there)
        assert set(survey.fitting) == {name for name, reasons in judged.items() if not reasons}
        assert survey.against == Counter(r for reasons in judged.values() for r in reasons)
        assert survey.scores == {
            name: surveys.least_allocated(pod, row) for name, row in survey.fitting.items()
        }


def test_only_so_many_kinds_are_kept() -> None:
    rows = {"n": makers.row("n")}
    kept = Surveys(rows)
    first = kept.of(PODS[0])
    assert kept.of(makers.pod("alike")) is first
    for number in range(surveys.KINDS):
        kept.of(makers.pod(requests={"cpu": f"{number + 1}m"}))
    assert kept.of(PODS[0]) is not first
