"""A bound pod keeps its cards when it becomes unreadable or is changed."""

from __future__ import annotations

import msgspec

from hami.cluster import state
from hami.cluster.pod_info import Hold
from hami.cluster.state import Cluster
from hami.placement import decide, request
from hami.vendors.table import AnnotationKeys, ResourceNames
from hami.wire import codec, objects
from tests.builders import (
    NVIDIA,
    ask,
    card,
    cluster,
    container,
    granted,
    node,
    pod,
    quota,
    use,
    winner,
)
from tests.oracle import rebuild

ALLOCATED = NVIDIA.annotations.allocated
ACME = msgspec.structs.replace(
    NVIDIA,
    name="ACME",
    section="acme",
    family="",
    resources=ResourceNames(count="acme.test/card", memory="acme.test/mem"),
    annotations=AnnotationKeys(register="acme.test/register", allocated="acme.test/allocated"),
)


def bound(value: str, uid: str = "p") -> objects.Pod:
    return granted(uid, "n", [("a", 1, 1), ("b", 1, 1)], annotations={ALLOCATED: value})


def test_what_can_be_read_of_a_damaged_list_counts_and_the_rest_is_closed() -> None:
    kept = cluster(
        node("n", [card("a"), card("b", index=1), card("c", index=2)]),
        bound("a,NVIDIA,8000,100:b,NVIDIA,8000,1OO:;"),
    )
    assert use(kept, "n", "a") == (1, 8000, 100)
    decision = ask(kept, pod("q", container(gpu=2, memory=1)))
    assert decision.explanation.failed_nodes() == {
        "n": "1/3 AllocatedCardsInsufficientRequest, 1/3 CardCordoned, 1/3 CardInsufficientMemory"
    }
    assert "1OO" in kept.problems()["pod p"][0]
    kept.forget_pod("p")
    assert ask(kept, pod("q", container(gpu=3, memory=8000))).winner is not None


def test_a_closed_card_stays_closed_when_its_node_changes() -> None:
    kept = cluster(node("n", [card("b")]), bound("b,NVIDIA,?,?:;"))
    kept.observe_node(node("n", [card("b", type="NVIDIA H200")]))
    assert ask(kept, pod("q", container(gpu=1, memory=1))).winner is None


def test_a_reservation_holds_when_the_bound_pods_list_cannot_be_read_or_is_missing() -> None:
    for value in ("garbage,", ""):
        kept = cluster(node("n", [card("a")]))
        asking = pod("p", container(gpu=1, memory=8000, cores=100))
        demand = request.parse(asking, tuple(kept.vendors.values()), request.Defaults())
        assert demand is not None
        decision = decide.decide(kept, demand)
        assert decision.winner is not None
        row = decide.reservation(demand, decision.winner)
        kept.apply(state.PutPod(row))
        kept.observe_pod(
            pod(
                "p",
                container(gpu=1, memory=8000, cores=100),
                node_name="n",
                annotations={ALLOCATED: value},
            )
        )
        assert use(kept, "n", "a") == (1, 8000, 100)
        assert kept.pods["p"].hold is Hold.BOUND
        assert kept.lapse("p") is None


def test_a_list_that_becomes_readable_is_believed() -> None:
    kept = cluster(
        node("n", [card("a")]),
        granted("p", "n", [("a", 1, 1)], annotations={ALLOCATED: "a,NVIDIA,?,1:;"}),
    )
    assert ask(kept, pod("q", container(gpu=1, memory=1))).winner is None
    kept.observe_pod(granted("p", "n", [("a", 3000, 30)]))
    assert use(kept, "n", "a") == (1, 3000, 30)
    assert ask(kept, pod("q", container(gpu=1, memory=1))).winner is not None


def two_vendors(uid: str, **lists: str) -> objects.Pod:
    limits = {NVIDIA.resources.count: 1, ACME.resources.count: 1}
    keys = {"nvidia": ALLOCATED, "acme": ACME.annotations.allocated}
    document = {
        "metadata": {
            "name": uid,
            "uid": uid,
            "namespace": "default",
            "annotations": {keys[vendor]: value for vendor, value in lists.items()},
        },
        "spec": {
            "nodeName": "n",
            "containers": [{"name": "c", "resources": {"limits": limits}}],
        },
    }
    return codec.decode(codec.encode(document), objects.Pod, what="pod")


def test_grants_are_frozen_vendor_by_vendor() -> None:
    kept = Cluster((NVIDIA, ACME))
    kept.observe_pod(two_vendors("p", nvidia="a,NVIDIA,3000,30:;"))
    kept.observe_pod(two_vendors("p", nvidia="a,NVIDIA,1,1:;", acme="x,ACME,5,0:;"))
    held = {(each.vendor, each.card): each.memory for each in kept.pods["p"].allocations()}
    assert held == {("NVIDIA", "a"): 3000, ("ACME", "x"): 5}


def test_one_vendors_cordon_does_not_close_the_cards_of_another() -> None:
    kept = Cluster((NVIDIA, ACME))
    both = node("n", [card("0")], **{"hami.io/device-cordon": "0", "acme.test/register": "[]"})
    document = codec.decode(codec.encode(both), dict, what="node")
    annotations = document["metadata"]["annotations"]
    annotations["acme.test/register"] = annotations[NVIDIA.annotations.register]
    document["status"]["allocatable"]["acme.test/card"] = 10
    kept.observe_node(codec.decode(codec.encode(document), objects.Node, what="node"))
    limits = {"resources": {"limits": {"acme.test/card": 1}}, "name": "c"}
    assert ask(kept, pod("p", limits)).winner is not None
    assert ask(kept, pod("p", container(gpu=1))).explanation.failed_nodes() == {
        "n": "1/1 CardCordoned"
    }


def test_one_container_with_two_grants_on_a_card_holds_their_sum_and_one_share() -> None:
    twice = granted(
        "p",
        "n",
        [("a", 5000, 50), ("a", 3000, 50)],
        [],
        init=[container("prepare", gpu=2)],
        containers=[container("main")],
    )
    kept = cluster(node("n", [card("a")]), twice)
    assert use(kept, "n", "a") == (1, 8000, 100)


class TestAnnotatedPods:
    """HAMi's scheduler writes the annotations before it binds."""

    def annotated(self, *, gpu: int) -> objects.Pod:
        keys = {"hami.io/vgpu-node": "n", ALLOCATED: "a,NVIDIA,8000,100:;"}
        return pod("p", container(gpu=gpu), annotations=keys)

    def test_a_lapsed_reservation_gives_way_to_what_the_annotations_ask_for(self) -> None:
        kept = cluster(node("n", [card("a")]), self.annotated(gpu=1))
        row = msgspec.structs.replace(kept.pods["p"], hold=Hold.RESERVED)
        kept.apply(state.PutPod(row))
        kept.lapse("p")
        assert kept.pods["p"].hold is Hold.ANNOTATED
        assert use(kept, "n", "a") == (1, 8000, 100)
        assert kept.lapse("p") is None, "there is no reservation any more"

    def test_a_pod_that_asks_for_no_card_holds_none_by_naming_some(self) -> None:
        kept = cluster(node("n", [card("a")]), self.annotated(gpu=0))
        assert use(kept, "n", "a") == (0, 0, 0)
        assert "asks for none" in kept.problems()["pod p"][0]


class TestDrift:
    def test_every_number_of_the_tables_is_compared(self) -> None:
        there = node("n", [card("a"), card("b", index=1, numa=1)])
        kept = cluster(there)
        card_table, row = kept.locate("n") or (None, 0)
        assert card_table is not None
        tables = {
            "cards NVIDIA": card_table.cards["NVIDIA"],
            "ids NVIDIA": card_table.ids["NVIDIA"],
        }
        for group, arrays in {**tables, "totals": card_table.totals}.items():
            for name in arrays.names:
                if name in ("type_number", "mode_number"):
                    continue
                array = getattr(arrays, name)
                array[..., row] += 1
                lines = rebuild.drift(kept, nodes=[there], pods=[], quotas=[])
                assert any(f"'{group} {name}'" in line for line in lines), name
                array[..., row] -= 1
        assert rebuild.drift(kept, nodes=[there], pods=[], quotas=[]) == []

    def test_a_rewritten_annotation_is_no_drift_but_reported(self) -> None:
        there, honest = node("n", [card("a")]), granted("p", "n", [("a", 3000, 30)])
        forged = granted("p", "n", [("a", 1, 0)])
        kept = cluster(there, honest)
        kept.observe_pod(forged)
        assert rebuild.drift(kept, nodes=[there], pods=[forged], quotas=[]) == []
        assert rebuild.rewritten(kept, [forged]) == ["pod default/p"]
        assert rebuild.rewritten(kept, [honest]) == []


def test_an_unreadable_quota_is_reported() -> None:
    kept = cluster(quota("q", memory="much"))
    assert "'much'" in kept.problems()["quota default/q"][0]


def test_texts_that_no_card_has_any_more_are_forgotten() -> None:
    kept = cluster(node("other", [card("x", type="T1")]))
    for number in range(100):
        kept.observe_node(node("n", [card("a", type=f"T{number}", mode=f"m{number}")]))
    words = kept.card_tables[8].cards["NVIDIA"]
    assert sorted(filter(None, words.types.texts)) == ["T1", "T99"]
    assert len(words.types.texts) <= 4
    annotations = {"nvidia.com/use-gputype": "T99"}
    assert winner(ask(kept, pod("p", container(gpu=1), annotations=annotations))) == ("n", [["a"]])
