"""The MIG offer: what nodes have, and what pods ask for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from hami.admission import settings
from hami.kube import listwatch
from hami.wire import codec, objects
from tests import feeding
from tests.builders import GPU, VENDORS
from tests.mig_offers import FilledOffer
from tests.unit.admission import pods
from tests.unit.admission.pods import MIG, Document, container

THREE = f"{MIG}3g.40gb"


def node(name: str, uid: str = "", **more: Any) -> objects.Node:
    """Make a node that offers `gpu` and `three`."""
    names = {"gpu": GPU, "three": THREE}
    document = {
        "metadata": {"name": name, "uid": uid or name},
        "status": {"allocatable": {names[key]: value for key, value in more.items()}},
    }
    return codec.decode(codec.encode(document), objects.Node, what="node")


def holder(uid: str, *containers: Document, phase: str = "Running", **spec: Any) -> objects.Pod:
    document = pods.pod(*containers, **spec)
    document["metadata"] |= {"uid": uid, "name": uid}
    return pods.read({**document, "status": {"phase": phase}})


@pytest.fixture
def mig_offer() -> FilledOffer:
    return FilledOffer(GPU)


def free(mig_offer: FilledOffer, resource: str = THREE) -> int:
    """Return how many are free on the node that has most."""
    return max((n for n in range(1, 20) if mig_offer.available(resource, n)), default=0)


class TestNodes:
    def test_a_resource_exists_while_some_node_has_one(self, mig_offer: FilledOffer) -> None:
        assert not mig_offer.exists(THREE)
        feeding.put(mig_offer.nodes, node("a", three="1"))
        feeding.put(mig_offer.nodes, node("b", three="2"))
        feeding.put(mig_offer.nodes, node("a", three="0"))
        assert mig_offer.exists(THREE)
        feeding.drop(mig_offer.nodes, "b")
        assert not mig_offer.exists(THREE)

    @pytest.mark.parametrize("amount", ["0", 0, None, "-1", "1.5", "500m", "x", "", "1e30"])
    def test_what_is_no_whole_number_of_at_least_one_does_not_exist(
        self, mig_offer: FilledOffer, amount: objects.Amount | None
    ) -> None:
        feeding.put(mig_offer.nodes, node("a", three=amount))
        assert not mig_offer.exists(THREE)
        assert free(mig_offer) == 0

    @pytest.mark.parametrize("amount", ["3", 3, "3.0", "3000m"])
    def test_numbers_are_read_in_every_form(
        self, mig_offer: FilledOffer, amount: objects.Amount
    ) -> None:
        feeding.put(mig_offer.nodes, node("a", three=amount))
        assert free(mig_offer) == 3

    def test_every_change_counts_at_once(self, mig_offer: FilledOffer) -> None:
        for name, amount, most in [("a", "2", 2), ("b", "5", 5), ("b", "1", 2), ("a", "0", 1)]:
            feeding.put(mig_offer.nodes, node(name, three=amount))
            assert free(mig_offer) == most
        feeding.drop(mig_offer.nodes, "b")
        assert free(mig_offer) == 0

    def test_other_resources_are_not_kept(self, mig_offer: FilledOffer) -> None:
        mig_offer.set_node("a", {"cpu": "4", "nvidia.com/gpumem": "1000", GPU: "1"})
        assert not mig_offer.exists("cpu")
        assert not mig_offer.exists("nvidia.com/gpumem")
        assert mig_offer.exists(GPU)

    def test_a_node_made_again_under_its_name_stays(self, mig_offer: FilledOffer) -> None:
        feeding.put(mig_offer.nodes, node("a", "old", three="1"))
        feeding.put(mig_offer.nodes, node("a", "new", three="2"))
        feeding.drop(mig_offer.nodes, "old")
        assert free(mig_offer) == 2
        feeding.drop(mig_offer.nodes, "new")
        assert not mig_offer.exists(THREE)

    def test_a_complete_list_forgets_the_others(self, mig_offer: FilledOffer) -> None:
        feeding.put(mig_offer.nodes, node("a", "old", three="1"))
        feeding.put(mig_offer.nodes, node("a", "new", three="2"))
        feeding.put(mig_offer.nodes, node("b", three="5"))
        feeding.put(mig_offer.nodes, node("c", gpu="5"))
        feeding.retain(mig_offer.nodes, {"new"})
        assert free(mig_offer) == 2
        assert not mig_offer.exists(GPU)

    def test_an_unknown_node_may_go(self, mig_offer: FilledOffer) -> None:
        feeding.drop(mig_offer.nodes, "never seen")
        assert not mig_offer.exists(THREE)


class TestPods:
    @pytest.fixture(autouse=True)
    def _nodes(self, mig_offer: FilledOffer) -> None:
        feeding.put(mig_offer.nodes, node("a", three="10", gpu="10"))

    def test_hold_what_they_ask_for_until_they_are_deleted(self, mig_offer: FilledOffer) -> None:
        pod = holder("u", container(mig={"3g.40gb": 2}, gpu=1), nodeName="a")
        for _ in range(2):  # a watch may tell the same twice
            feeding.put(mig_offer.pods, pod)
            assert (free(mig_offer), free(mig_offer, GPU)) == (8, 9)
        feeding.drop(mig_offer.pods, "u")
        feeding.drop(mig_offer.pods, "u")
        assert (free(mig_offer), free(mig_offer, GPU)) == (10, 10)

    @pytest.mark.parametrize("phase", ["Succeeded", "Failed"])
    def test_hold_nothing_once_they_have_finished(self, mig_offer: FilledOffer, phase: str) -> None:
        asked = container(mig={"3g.40gb": 2})
        feeding.put(mig_offer.pods, holder("u", asked, nodeName="a"))
        feeding.put(mig_offer.pods, holder("u", asked, nodeName="a", phase=phase))
        assert free(mig_offer) == 10

    @pytest.mark.parametrize("parts", [["limits"], ["requests"], ["limits", "requests"]])
    def test_count_what_is_limited_or_requested_once(
        self, mig_offer: FilledOffer, parts: list[str]
    ) -> None:
        feeding.put(
            mig_offer.pods, holder("u", container(mig={"3g.40gb": 2}, parts=parts), nodeName="a")
        )
        assert free(mig_offer) == 8

    def test_count_the_containers_that_ask_and_no_others(self, mig_offer: FilledOffer) -> None:
        none = container("none", gpu=1)
        feeding.put(mig_offer.pods, holder("u", container(mig={"3g.40gb": 2}), none, nodeName="a"))
        assert (free(mig_offer), free(mig_offer, GPU)) == (8, 9)

    def test_count_the_most_they_have_at_one_time(self, mig_offer: FilledOffer) -> None:
        init = [
            container("big", mig={"3g.40gb": 4}),
            container("side", mig={"3g.40gb": 1}, restart="Always"),
            container("small", mig={"3g.40gb": 2}),
        ]
        apps = [container("app", mig={"3g.40gb": 1}), container("none")]
        feeding.put(mig_offer.pods, holder("u", *apps, initContainers=init, nodeName="a"))
        assert free(mig_offer) == 6  # the first init container; later it is 3, then 2
        init[2]["resources"]["limits"][THREE] = "6"
        feeding.put(mig_offer.pods, holder("u", *apps, initContainers=init, nodeName="a"))
        assert free(mig_offer) == 3  # the sidecar and the last init container

    def test_that_wait_are_taken_off_what_is_left_in_all(self, mig_offer: FilledOffer) -> None:
        feeding.put(mig_offer.nodes, node("b", three="3"))
        feeding.put(mig_offer.pods, holder("u", container(mig={"3g.40gb": 2})))
        assert free(mig_offer) == 10  # they may go to b
        feeding.put(mig_offer.pods, holder("v", container(mig={"3g.40gb": 5})))
        assert free(mig_offer) == 6
        feeding.put(mig_offer.pods, holder("v", container(mig={"3g.40gb": 5}), nodeName="a"))
        assert free(mig_offer) == 5

    def test_on_a_node_that_offers_less_now_leave_nothing_and_owe_nothing(
        self, mig_offer: FilledOffer
    ) -> None:
        feeding.put(mig_offer.pods, holder("u", container(mig={"3g.40gb": 4}), nodeName="a"))
        feeding.put(mig_offer.nodes, node("a", three="1"))
        feeding.put(mig_offer.nodes, node("b", three="3"))
        assert free(mig_offer) == 3
        feeding.put(mig_offer.nodes, node("a", three="6"))
        assert mig_offer.available(THREE, 3)
        feeding.drop(mig_offer.nodes, "b")
        assert free(mig_offer) == 2

    def test_that_a_complete_list_does_not_hold_are_forgotten(self, mig_offer: FilledOffer) -> None:
        for uid in ("u", "v", "w"):
            feeding.put(mig_offer.pods, holder(uid, container(mig={"3g.40gb": 1}), nodeName="a"))
        feeding.retain(mig_offer.pods, {"v"})
        assert free(mig_offer) == 9

    def test_with_amounts_that_cannot_be_allocated_hold_nothing(
        self, mig_offer: FilledOffer
    ) -> None:
        asked = container(mig={"3g.40gb": 1})
        asked["resources"]["limits"][THREE] = "0.5"
        asked["resources"]["requests"] = None
        feeding.put(mig_offer.pods, holder("u", asked, nodeName="a"))
        assert free(mig_offer) == 10


@pytest.mark.parametrize(
    ("asked", "seen"),
    [({"gpu": 1}, True), ({"mig": {"3g.40gb": 1}}, True), ({"memory": 1}, False), ({}, False)],
)
def test_pods_that_hold_nothing_are_not_even_decoded(asked: Any, seen: bool) -> None:
    plan = settings.plan(VENDORS, mode="available", end="whole", file="")
    document = pods.pod(container(**asked))
    document["metadata"] |= {"uid": "u", "resourceVersion": "7"}
    decoded = listwatch.pods_with(settings.pod_marks(plan))(codec.encode(document))
    if seen:
        assert isinstance(decoded, objects.Pod)
    else:
        assert decoded is None


@pytest.mark.parametrize("mode", ["off", "type"])
def test_pods_are_watched_in_available_mode_only(mode: str) -> None:
    plan = settings.plan(VENDORS, mode=mode, end="share", file="")
    assert settings.pod_marks(plan) == ()


def test_without_a_gpus_name_only_instances_are_kept() -> None:
    mig_offer = FilledOffer("")
    offered: Mapping[str, str] = {"": "1", GPU: "1", THREE: "1"}
    mig_offer.set_node("a", offered)
    assert (mig_offer.exists(GPU), mig_offer.exists(THREE)) == (False, True)
