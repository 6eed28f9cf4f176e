"""Enflame cards that could be given twice, and capacities that stop the scheduler."""

from __future__ import annotations

import json
from typing import Any

import pytest

from hami.cluster.state import Cluster
from hami.placement import decide, request
from hami.placement.decide import Placement
from hami.scheduler import binding
from hami.vendors import enflame, table
from hami.wire import codec, errors, objects

VGCU = {"enflame.com/vgcu": "1", "enflame.com/vgcu-percentage": "100"}
DRS = {"enflame.com/drs-gcu": "6"}
CUT = json.dumps({"devices": [{"index": "0", "capacity": 6}], "profiles": {"6g.48gb": "1"}})


def pod(name: str, *limits: dict[str, str], node: str = "", **annotations: str) -> objects.Pod:
    containers = [{"name": f"c{n}", "resources": {"limits": each}} for n, each in enumerate(limits)]
    made: dict[str, Any] = {
        "metadata": {"name": name, "uid": name, "namespace": "d", "annotations": annotations},
        "spec": {"nodeName": node, "containers": containers},
    }
    return codec.decode(json.dumps(made).encode(), objects.Pod, what="pod")


def cluster(name: str, annotations: dict[str, str] | None = None, *, slices: int = 4) -> Cluster:
    capacity = {"enflame.com/gcu-count": "1", "enflame.com/shared-gcu": str(slices)}
    made = {
        "metadata": {"name": name, "annotations": annotations or {}},
        "status": {"capacity": capacity},
    }
    found = Cluster(table.built_in())
    found.observe_node(codec.decode(json.dumps(made).encode(), objects.Node, what="node"))
    return found


def place(found: Cluster, name: str, *limits: dict[str, str]) -> Placement | None:
    """Place a pod; the cluster knows it only by what its Binding wrote, as after a restart."""
    wanted = request.parse(pod(name, *limits), found.families, request.Defaults())
    assert wanted is not None
    winner = decide.decide(found, wanted, None).winner
    if winner is not None:
        written = binding.decision_annotations(
            decide.reservation(wanted, winner),
            found.families,
            containers=tuple(each.name for each in wanted.containers),
            node=found.nodes[winner.node],
            now=0.0,
            keys=None,
            reads="",
        )
        found.observe_pod(pod(name, *limits, node=winner.node, **written))
    return winner


@pytest.mark.parametrize("name", ["rack-enflame-drs-7", "a-enflame-drs-b", "plain"])
def test_a_card_is_given_once_whatever_its_node_is_called(name: str) -> None:
    found = cluster(name)
    assert place(found, "first", VGCU) is not None
    assert place(found, "second", VGCU) is None


@pytest.mark.parametrize("name", ["rack-enflame-drs-7", "plain"])
def test_a_cut_card_is_given_once_whatever_its_node_is_called(name: str) -> None:
    found = cluster(name, {"enflame.com/gcu-drs-capacity": CUT})
    assert place(found, "first", DRS) is not None
    assert place(found, "second", DRS) is None


def test_a_pod_cannot_ask_for_cards_that_one_list_would_have_to_name() -> None:
    found = cluster("e", {"enflame.com/gcu-drs-capacity": CUT})
    with pytest.raises(errors.WireError, match=r"hami\.io/enflame-vgpu-devices-allocated"):
        place(found, "both", VGCU, DRS)


@pytest.mark.parametrize("slices", [1, 3, 4, 6, 7, 100])
def test_percent_are_rounded_up_to_the_next_slice(slices: int) -> None:
    for percent in range(1, 101):
        taken = enflame._slices_for(percent, slices)
        assert 100 / slices * taken >= percent > 100 / slices * (taken - 1)


def test_a_capacity_of_a_billion_slices_does_not_stop_admission() -> None:
    found = cluster("a", slices=2**31 - 1)
    (_, container), *_ = pod("p", VGCU).containers()
    completed = found.families["Enflame-VGCU"].complete(container, found)
    assert completed.amount("enflame.com/shared-gcu") == str(2**31 - 1)
