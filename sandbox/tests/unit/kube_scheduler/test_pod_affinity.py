"""Near to some pods, far from others."""

from __future__ import annotations

from typing import Any

import pytest

from hami_sandbox.kube_scheduler.checks import NOT_FAR, NOT_NEAR, UNWANTED, Neighbours
from hami_sandbox.kube_scheduler.nodes import Row
from hami_sandbox.kube_scheduler.pods import Pod
from sandbox.tests.unit.kube_scheduler.makers import pod, row

HOST, ZONE = "kubernetes.io/hostname", "zone"


def term(app: str, key: str = HOST, **more: Any) -> dict[str, Any]:
    return {"topologyKey": key, "labelSelector": {"matchLabels": {"app": app}}, **more}


def near(*terms: dict[str, Any]) -> dict[str, Any]:
    return {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": list(terms)}}


def far(*terms: dict[str, Any]) -> dict[str, Any]:
    return {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": list(terms)}}


def cluster(*placed: Pod) -> list[Row]:
    """Return three nodes in two zones; all that is placed is on the first."""
    return [
        row("a", *placed, labels={ZONE: "one"}),
        row("b", labels={ZONE: "one"}),
        row("c"),
    ]


def judged(wanted: Pod, rows: list[Row]) -> list[str]:
    repelling = [(there, place) for place in rows for there in place.pods.values() if there.far]
    neighbours = Neighbours(wanted, rows, repelling)
    return [neighbours.why_not(place.node) for place in rows if place.node is not None]


def test_near_to_a_pod_by_node_and_by_zone() -> None:
    rows = cluster(pod("there", labels={"app": "db"}))
    assert judged(pod(affinity=near(term("db"))), rows) == ["", NOT_NEAR, NOT_NEAR]
    assert judged(pod(affinity=near(term("db", ZONE))), rows) == ["", "", NOT_NEAR]
    assert judged(pod(affinity=near(term("web"))), rows) == [NOT_NEAR] * 3


def test_the_first_of_its_group_may_go_where_the_label_is() -> None:
    first = pod(labels={"app": "db"}, affinity=near(term("db", ZONE)))
    assert judged(first, cluster()) == ["", "", NOT_NEAR]
    second = cluster(pod("there", labels={"app": "db"}))
    assert judged(pod(labels={"app": "db"}, affinity=near(term("db"))), second)[0] == ""
    assert judged(pod(labels={"app": "db"}, affinity=near(term("db"))), second)[1] == NOT_NEAR


def test_all_terms_must_mean_the_same_pod() -> None:
    rows = cluster(pod("there", labels={"app": "db"}))
    both = near(term("db"), term("web"))
    assert judged(pod(affinity=both), rows) == [NOT_NEAR] * 3


def test_far_from_a_pod() -> None:
    rows = cluster(pod("there", labels={"app": "db"}))
    assert judged(pod(affinity=far(term("db"))), rows) == [NOT_FAR, "", ""]
    assert judged(pod(affinity=far(term("db", ZONE))), rows) == [NOT_FAR, NOT_FAR, ""]


def test_who_is_there_may_keep_others_away() -> None:
    rows = cluster(pod("there", affinity=far(term("web", ZONE))))
    assert judged(pod(labels={"app": "web"}), rows) == [UNWANTED, UNWANTED, ""]
    assert judged(pod(labels={"app": "db"}), rows) == ["", "", ""]


@pytest.mark.parametrize(
    ("more", "meant"),
    [
        ({}, False),
        ({"namespaces": ["team"]}, True),
        ({"namespaces": ["other"]}, False),
        ({"namespaceSelector": {}}, True),
        ({"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "team"}}}, True),
        ({"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "x"}}}, False),
    ],
)
def test_namespaces(more: dict[str, Any], meant: bool) -> None:
    rows = cluster(pod("there", labels={"app": "db"}, namespace="team"))
    found = judged(pod(affinity=far(term("db", **more))), rows)
    assert found == [NOT_FAR if meant else "", "", ""]


def test_a_pod_does_not_mean_itself() -> None:
    own = pod("p", labels={"app": "db"}, affinity=far(term("db")))
    rows = cluster(pod("other", labels={"app": "web"}))
    assert judged(own, rows) == ["", "", ""]
