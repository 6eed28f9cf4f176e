"""Reasons of a node to refuse a pod, in kube-scheduler's words."""

from __future__ import annotations

from typing import Any

import pytest

from hami_sandbox.kube_scheduler import checks, events, surveys
from hami_sandbox.kube_scheduler.nodes import Row
from sandbox.tests.unit.kube_scheduler.makers import GPU, pod, row

AFFINITY = {
    "nodeAffinity": {
        "requiredDuringSchedulingIgnoredDuringExecution": {
            "nodeSelectorTerms": [
                {"matchExpressions": [{"key": "zone", "operator": "In", "values": ["a"]}]}
            ]
        }
    }
}
TAINT = {"key": "gpu", "value": "h100", "effect": "NoSchedule"}
PORTS = [{"name": "c", "ports": [{"containerPort": 80, "hostPort": 80}]}]


@pytest.mark.parametrize(
    ("wanted", "offered", "told"),
    [
        ({}, {}, ()),
        ({"requests": {"cpu": "8", "memory": "32Gi"}}, {}, ()),
        ({"requests": {"cpu": "8001m"}}, {}, ("Insufficient cpu",)),
        (
            {"requests": {"cpu": "9", "memory": "33Gi", GPU: "1"}},
            {"pods": "0"},
            ("Too many pods", "Insufficient cpu", "Insufficient memory", f"Insufficient {GPU}"),
        ),
        ({"requests": {GPU: "2"}}, {GPU: "2"}, ()),
        ({"requests": {GPU: "2"}}, {GPU: "1"}, (f"Insufficient {GPU}",)),
        ({}, {"unschedulable": True}, ("node(s) were unschedulable",)),
        ({"tolerations": [{"operator": "Exists"}]}, {"unschedulable": True}, ()),
        ({}, {"taints": [TAINT]}, ("node(s) had untolerated taint(s)",)),
        ({"tolerations": [{"key": "gpu", "operator": "Exists"}]}, {"taints": [TAINT]}, ()),
        ({}, {"taints": [{**TAINT, "effect": "PreferNoSchedule"}]}, ()),
        ({}, {"ready": "True"}, ()),
        (
            {},
            {"ready": "False"},
            ("node(s) had untolerated taint(s)",),
        ),
        (
            {},
            {"ready": "Unknown"},
            ("node(s) had untolerated taint(s)",),
        ),
        ({"nodeSelector": {"zone": "a"}}, {"labels": {"zone": "a"}}, ()),
        (
            {"nodeSelector": {"zone": "a"}},
            {"labels": {"zone": "b"}},
            ("node(s) didn't match Pod's node affinity/selector",),
        ),
        ({"affinity": AFFINITY}, {"labels": {"zone": "a"}}, ()),
        ({"affinity": AFFINITY}, {}, ("node(s) didn't match Pod's node affinity/selector",)),
    ],
)
def test_one_node(wanted: dict[str, Any], offered: dict[str, Any], told: tuple[str, ...]) -> None:
    assert checks.reasons(pod(**wanted), row(**offered)) == told


def test_what_is_placed_counts_until_it_is_gone() -> None:
    there = pod("there", requests={"cpu": "5"})
    place = row("n", there, pods="2")
    assert checks.reasons(pod(requests={"cpu": "3"}), place) == ()
    assert checks.reasons(pod(requests={"cpu": "4"}), place) == ("Insufficient cpu",)
    place.add(there)  # said twice, counted once
    assert checks.reasons(pod(requests={"cpu": "3"}), place) == ()
    place.add(pod("second"))
    assert checks.reasons(pod(), place) == ("Too many pods",)
    place.remove("uid-there")
    place.remove("uid-there")
    assert checks.reasons(pod(requests={"cpu": "8"}), place) == ()


def test_ports_of_the_node() -> None:
    place = row("n", pod("there", containers=PORTS))
    told = ("node(s) didn't have free ports for the requested pod ports",)
    assert checks.reasons(pod(containers=PORTS), place) == told
    place.remove("uid-there")
    assert checks.reasons(pod(containers=PORTS), place) == ()


def test_a_node_that_is_gone_takes_nobody() -> None:
    place = row()
    place.node = None
    assert checks.reasons(pod(), place) == ("node not found",)


def test_the_message_counts_reasons_in_order() -> None:
    reasons = {"node(s) were unschedulable": 1, "Insufficient cpu": 12, "Insufficient memory": 2}
    assert events.unfit(14, reasons) == (
        "0/14 nodes are available: 1 node(s) were unschedulable, 12 Insufficient cpu, "
        "2 Insufficient memory."
    )
    assert events.unfit(2, {"Too many pods": 2}, may_preempt=True) == (
        "0/2 nodes are available: 2 Too many pods. "
        "preemption: this sandbox does not preempt pods of lower priority."
    )


def chosen(rows: list[Row], points: dict[str, int] | None = None, *, turn: int = 0) -> str:
    scores = {place.name: surveys.least_allocated(pod(), place) for place in rows}
    return surveys.best(rows, scores, points or {}, turn=turn).name


def test_the_emptier_node_is_chosen_unless_an_extender_outvotes_it() -> None:
    full = row("full", pod("there", requests={"cpu": "6"}))
    empty = row("empty")
    assert chosen([full, empty]) == "empty"
    assert chosen([full, empty], {"full": 10}) == "full"
    assert chosen([full]) == "full"


def test_equal_nodes_take_turns() -> None:
    rows = [row("a"), row("b"), row("c")]
    assert [chosen(rows, turn=turn) for turn in range(4)] == ["a", "b", "c", "a"]


def test_pods_that_ask_for_nothing_are_spread_as_well() -> None:
    assert chosen([row("a", pod("there")), row("b")]) == "b"
