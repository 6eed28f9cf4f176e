"""What nodes offer and pods hold, as watches tell it: in any order, again, and after a gap."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from hami.admission import settings
from hami.admission.mig_offer import MigOffer
from hami.kube import store
from hami.wire import codec, objects
from tests.builders import GPU, VENDORS
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
    document["metadata"]["uid"] = uid
    return pods.read({**document, "status": {"phase": phase}})


@pytest.fixture
def inventory() -> MigOffer:
    return MigOffer(GPU)


def free(inventory: MigOffer, resource: str = THREE) -> int:
    """Return how many are free on the node that has most."""
    return max((n for n in range(1, 20) if inventory.available(resource, n)), default=0)


class TestNodes:
    def test_a_resource_exists_while_some_node_has_one(self, inventory: MigOffer) -> None:
        assert not inventory.exists(THREE)
        inventory.nodes.put(node("a", three="1"))
        inventory.nodes.put(node("b", three="2"))
        inventory.nodes.put(node("a", three="0"))
        assert inventory.exists(THREE)
        inventory.nodes.drop("b")
        assert not inventory.exists(THREE)

    @pytest.mark.parametrize("amount", ["0", 0, None, "-1", "1.5", "500m", "x", "", "1e30"])
    def test_what_is_no_whole_number_of_at_least_one_does_not_exist(
        self, inventory: MigOffer, amount: objects.Amount | None
    ) -> None:
        inventory.nodes.put(node("a", three=amount))
        assert not inventory.exists(THREE)
        assert free(inventory) == 0

    @pytest.mark.parametrize("amount", ["3", 3, "3.0", "3000m"])
    def test_numbers_are_read_in_every_form(
        self, inventory: MigOffer, amount: objects.Amount
    ) -> None:
        inventory.nodes.put(node("a", three=amount))
        assert free(inventory) == 3

    def test_every_change_counts_at_once(self, inventory: MigOffer) -> None:
        for name, amount, most in [("a", "2", 2), ("b", "5", 5), ("b", "1", 2), ("a", "0", 1)]:
            inventory.nodes.put(node(name, three=amount))
            assert free(inventory) == most
        inventory.nodes.drop("b")
        assert free(inventory) == 0

    def test_other_resources_are_not_kept(self, inventory: MigOffer) -> None:
        inventory.set_node("a", {"cpu": "4", "nvidia.com/gpumem": "1000", GPU: "1"})
        assert not inventory.exists("cpu")
        assert not inventory.exists("nvidia.com/gpumem")
        assert inventory.exists(GPU)

    def test_a_node_made_again_under_its_name_stays(self, inventory: MigOffer) -> None:
        inventory.nodes.put(node("a", "old", three="1"))
        inventory.nodes.put(node("a", "new", three="2"))
        inventory.nodes.drop("old")
        assert free(inventory) == 2
        inventory.nodes.drop("new")
        assert not inventory.exists(THREE)

    def test_a_complete_list_forgets_the_others(self, inventory: MigOffer) -> None:
        inventory.nodes.put(node("a", "old", three="1"))
        inventory.nodes.put(node("a", "new", three="2"))
        inventory.nodes.put(node("b", three="5"))
        inventory.nodes.put(node("c", gpu="5"))
        inventory.nodes.retain({"new"})
        assert free(inventory) == 2
        assert not inventory.exists(GPU)

    def test_an_unknown_node_may_go(self, inventory: MigOffer) -> None:
        inventory.nodes.drop("never seen")
        assert not inventory.exists(THREE)


class TestPods:
    @pytest.fixture(autouse=True)
    def _nodes(self, inventory: MigOffer) -> None:
        inventory.nodes.put(node("a", three="10", gpu="10"))

    def test_hold_what_they_ask_for_until_they_are_gone(self, inventory: MigOffer) -> None:
        pod = holder("u", container(mig={"3g.40gb": 2}, gpu=1), nodeName="a")
        for _ in range(2):  # a watch may tell the same twice
            inventory.pods.put(pod)
            assert (free(inventory), free(inventory, GPU)) == (8, 9)
        inventory.pods.drop("u")
        inventory.pods.drop("u")
        assert (free(inventory), free(inventory, GPU)) == (10, 10)

    @pytest.mark.parametrize("phase", ["Succeeded", "Failed"])
    def test_hold_nothing_once_they_have_finished(self, inventory: MigOffer, phase: str) -> None:
        asked = container(mig={"3g.40gb": 2})
        inventory.pods.put(holder("u", asked, nodeName="a"))
        inventory.pods.put(holder("u", asked, nodeName="a", phase=phase))
        assert free(inventory) == 10

    @pytest.mark.parametrize("parts", [["limits"], ["requests"], ["limits", "requests"]])
    def test_count_what_is_limited_or_requested_once(
        self, inventory: MigOffer, parts: list[str]
    ) -> None:
        inventory.pods.put(holder("u", container(mig={"3g.40gb": 2}, parts=parts), nodeName="a"))
        assert free(inventory) == 8

    def test_count_the_containers_that_ask_and_no_others(self, inventory: MigOffer) -> None:
        none = container("none", gpu=1)
        inventory.pods.put(holder("u", container(mig={"3g.40gb": 2}), none, nodeName="a"))
        assert (free(inventory), free(inventory, GPU)) == (8, 9)

    def test_count_the_most_they_have_at_one_time(self, inventory: MigOffer) -> None:
        init = [
            container("big", mig={"3g.40gb": 4}),
            container("side", mig={"3g.40gb": 1}, restart="Always"),
            container("small", mig={"3g.40gb": 2}),
        ]
        apps = [container("app", mig={"3g.40gb": 1}), container("none")]
        inventory.pods.put(holder("u", *apps, initContainers=init, nodeName="a"))
        assert free(inventory) == 6  # the first init container; later it is 3, then 2
        init[2]["resources"]["limits"][THREE] = "6"
        inventory.pods.put(holder("u", *apps, initContainers=init, nodeName="a"))
        assert free(inventory) == 3  # the sidecar and the last init container

    def test_that_wait_are_taken_off_what_is_left_in_all(self, inventory: MigOffer) -> None:
        inventory.nodes.put(node("b", three="3"))
        inventory.pods.put(holder("u", container(mig={"3g.40gb": 2})))
        assert free(inventory) == 10  # they may go to b
        inventory.pods.put(holder("v", container(mig={"3g.40gb": 5})))
        assert free(inventory) == 6
        inventory.pods.put(holder("v", container(mig={"3g.40gb": 5}), nodeName="a"))
        assert free(inventory) == 5

    def test_on_a_node_that_offers_less_now_leave_nothing_and_owe_nothing(
        self, inventory: MigOffer
    ) -> None:
        inventory.pods.put(holder("u", container(mig={"3g.40gb": 4}), nodeName="a"))
        inventory.nodes.put(node("a", three="1"))
        inventory.nodes.put(node("b", three="3"))
        assert free(inventory) == 3
        inventory.nodes.put(node("a", three="6"))
        assert inventory.available(THREE, 3)
        inventory.nodes.drop("b")
        assert free(inventory) == 2

    def test_that_a_complete_list_does_not_hold_are_forgotten(self, inventory: MigOffer) -> None:
        for uid in ("u", "v", "w"):
            inventory.pods.put(holder(uid, container(mig={"3g.40gb": 1}), nodeName="a"))
        inventory.pods.retain({"v"})
        assert free(inventory) == 9

    def test_with_amounts_that_nobody_can_allocate_hold_nothing(self, inventory: MigOffer) -> None:
        asked = container(mig={"3g.40gb": 1})
        asked["resources"]["limits"][THREE] = "0.5"
        asked["resources"]["requests"] = None
        inventory.pods.put(holder("u", asked, nodeName="a"))
        assert free(inventory) == 10


@pytest.mark.parametrize(
    ("asked", "seen"),
    [({"gpu": 1}, True), ({"mig": {"3g.40gb": 1}}, True), ({"memory": 1}, False), ({}, False)],
)
def test_pods_that_hold_nothing_are_not_even_decoded(asked: Any, seen: bool) -> None:
    plan = settings.plan(VENDORS, mode="available", end="whole", file="")
    document = pods.pod(container(**asked))
    document["metadata"] |= {"uid": "u", "resourceVersion": "7"}
    decoded = store.pods_with(settings.pod_marks(plan))(codec.encode(document))
    if seen:
        assert isinstance(decoded, objects.Pod)
    else:
        assert decoded == store.Ignored("u", 7)


@pytest.mark.parametrize("mode", ["off", "type"])
def test_pods_are_watched_in_available_mode_only(mode: str) -> None:
    plan = settings.plan(VENDORS, mode=mode, end="share", file="")
    assert settings.pod_marks(plan) == ()


def test_without_a_gpus_name_only_instances_are_kept() -> None:
    inventory = MigOffer("")
    offered: Mapping[str, str] = {"": "1", GPU: "1", THREE: "1"}
    inventory.set_node("a", offered)
    assert (inventory.exists(GPU), inventory.exists(THREE)) == (False, True)
