"""MIG profiles that no node has: their replacement, and how it is reported."""

from __future__ import annotations

import itertools
from typing import Any

import msgspec
import pytest

from hami.wire import annotation_keys
from tests.builders import CORES, GPU, MEMORY, NVIDIA
from tests.unit.admission import pods
from tests.unit.admission.pods import MIG, Document, Door, container, pod

OURS = "hami-scheduler"
SHARES = {"a": {GPU: "10"}}


def having(*profiles: str, **options: Any) -> Door:
    """Make a door to a cluster with instances of these profiles, each on its own node."""
    return Door(nodes={name: {f"{MIG}{name}": "2"} for name in profiles}, **options)


def noted(document: Document) -> str | None:
    found: str | None = document["metadata"].get("annotations", {}).get(annotation_keys.FALLBACK)
    return found


CHAIN = ["3g.40gb", "2g.20gb", "1g.10gb"]


@pytest.mark.parametrize("asked", range(3))
@pytest.mark.parametrize("has", range(3))
def test_a_missing_profile_becomes_the_next_that_exists(asked: int, has: int) -> None:
    door = Door(nodes={"a": {f"{MIG}{CHAIN[has]}": "1"}, "b": {GPU: "10"}})
    through = door.passes(pod(container(mig={CHAIN[asked]: 1})))
    if has == asked:
        assert noted(through) is None
        assert pods.asked(through) == {f"{MIG}{CHAIN[asked]}": "1"}
    elif has > asked:
        assert noted(through) == f"{CHAIN[asked]}->{CHAIN[has]}"
        assert pods.asked(through) == {f"{MIG}{CHAIN[has]}": "1"}
    else:
        # Never upwards: a larger instance would waste what it has more.
        assert noted(through) == f"{CHAIN[asked]}->gpu"
        assert pods.asked(through)[GPU] == "1"


def test_a_profile_that_exists_is_left_alone_though_all_are_taken() -> None:
    door = having("3g.40gb", "2g.20gb")
    taken = pod(container(mig={"3g.40gb": 2}))
    door.mig_offer.set_pod("u", pods.read({**taken, "spec": {**taken["spec"], "nodeName": "a"}}))
    answer = door.send(pod(container(mig={"3g.40gb": 1})))
    assert (answer.patch, answer.warnings) == ([], ())


def test_a_node_that_has_none_of_it_to_allocate_does_not_count() -> None:
    door = Door(nodes={"a": {f"{MIG}3g.40gb": "0"}, "b": {f"{MIG}1g.10gb": "1"}})
    assert noted(door.passes(pod(container(mig={"3g.40gb": 1})))) == "3g.40gb->1g.10gb"


def test_the_user_is_warned() -> None:
    document = pod(container("train", mig={"3g.40gb": 1}), container("eval", mig={"1g.5gb": 1}))
    answer = Door(nodes={"a": {f"{MIG}2g.20gb": "1", GPU: "10"}}).send(document)
    train, evaluate = answer.warnings
    assert train == (
        "container train: no node of this cluster can give it nvidia.com/mig-3g.40gb, "
        "it will get nvidia.com/mig-2g.20gb instead"
    )
    assert evaluate == (
        "container eval: no node of this cluster can give it nvidia.com/mig-1g.5gb, "
        "it will get a GPU instead"
    )


@pytest.mark.parametrize("parts", [["limits"], ["requests"], ["limits", "requests"]])
def test_limits_and_requests_are_both_rewritten(parts: list[str]) -> None:
    through = having("1g.10gb").passes(pod(container(mig={"3g.40gb": 2}, parts=parts)))
    assert through["spec"]["containers"][0]["resources"] == {
        "limits": {f"{MIG}1g.10gb": "2"},
        "requests": {f"{MIG}1g.10gb": "2"},
    }


def test_other_resources_and_fields_stay() -> None:
    train = container(mig={"3g.40gb": 1})
    train["resources"]["limits"] |= {"cpu": "4", "rdma/hca": "1"}
    train["resources"]["claims"] = [{"name": "claim"}]
    train["command"] = ["python"]
    (through,) = having("1g.10gb").passes(pod(train))["spec"]["containers"]
    assert through["resources"]["limits"] == {"cpu": "4", "rdma/hca": "1", f"{MIG}1g.10gb": "1"}
    assert through["resources"]["claims"] == [{"name": "claim"}]
    assert through["command"] == ["python"]


def test_every_container_is_moved_and_all_is_noted_once_in_their_order() -> None:
    document = pod(
        container("a", mig={"7g.80gb": 1}),
        container("b", mig={"3g.40gb": 1}),
        container("c", mig={"1g.10gb": 1}),
        container("d", mig={"3g.40gb": 2}),
        init=[
            container("i", mig={"4g.40gb": 1}),
            container("s", mig={"2g.20gb": 1}, restart="Always"),
        ],
    )
    through = having("1g.10gb").passes(document)
    assert noted(through) == ("4g.40gb->1g.10gb,2g.20gb->1g.10gb,7g.80gb->1g.10gb,3g.40gb->1g.10gb")
    one, two = {f"{MIG}1g.10gb": "1"}, {f"{MIG}1g.10gb": "2"}
    assert [pods.asked(through, place) for place in range(4)] == [one, one, one, two]
    assert [pods.asked(through, place, key="initContainers") for place in range(2)] == [one, one]


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("", "3g.40gb->1g.10gb"),
        ("2g.20gb->1g.10gb", "2g.20gb->1g.10gb,3g.40gb->1g.10gb"),
        ("3g.40gb->1g.10gb", "3g.40gb->1g.10gb"),
        ("a,,b", "a,b,3g.40gb->1g.10gb"),
    ],
)
def test_what_an_earlier_webhook_noted_stays(before: str, after: str) -> None:
    document = pod(
        container(mig={"3g.40gb": 1}), annotations={"x": "y", annotation_keys.FALLBACK: before}
    )
    through = having("1g.10gb").passes(document)
    assert through["metadata"]["annotations"] == {"x": "y", annotation_keys.FALLBACK: after}


def test_several_profiles_of_one_container_are_added_up() -> None:
    document = pod(container(mig={"3g.40gb": 1, "2g.20gb": 2, "1g.10gb": 1}))
    through = having("1g.10gb").passes(document)
    assert pods.asked(through) == {f"{MIG}1g.10gb": "4"}
    assert noted(through) == "2g.20gb->1g.10gb,3g.40gb->1g.10gb"


@pytest.mark.parametrize("name", ["1g.10gb.me", "9g.90gb", "1g.99gb", "", "3g.40GB"])
def test_a_profile_of_no_chain_is_left_alone(name: str) -> None:
    answer = Door(nodes={}).send(pod(container(mig={name: 1})))
    assert (answer.allowed, answer.patch) == (True, [])


def test_a_resource_that_only_looks_like_a_profile_is_left_alone() -> None:
    document = pod(container())
    document["spec"]["containers"][0]["resources"] = {"limits": {"3g.40gb": "1"}}
    assert Door(nodes={}).leaves(document)


def test_no_instance_asked_for_is_nothing_to_replace() -> None:
    document = pod(container(mig={"3g.40gb": 0}))
    assert Door(nodes={}).leaves(document)
    document["spec"]["containers"][0]["resources"] = {"limits": {f"{MIG}3g.40gb": None}}
    assert Door(nodes={}).leaves(document)


@pytest.mark.parametrize("value", ["1.5", "-1", "x"])
def test_an_amount_that_cannot_be_is_refused(value: str) -> None:
    document = pod(container(mig={"3g.40gb": 1}))
    document["spec"]["containers"][0]["resources"]["limits"][f"{MIG}3g.40gb"] = value
    for door in (Door(), Door.alone()):
        message = door.refuses(document, code=422)
        assert message.startswith(f"container main, {MIG}3g.40gb: {value!r} is")


def test_cards_asked_for_besides_must_be_readable() -> None:
    for door in (Door(), Door.alone()):
        message = door.refuses(pod(container(gpu="1.5", mig={"7g.80gb": 1})), code=422)
        assert message.startswith("container main, nvidia.com/gpu: '1.5' is not a whole number")


def test_a_cluster_without_any_gpu_refuses_the_pod() -> None:
    for door in (Door(nodes={}), Door.alone(nodes={}), Door(nodes={}, mode="available")):
        message = door.refuses(pod(container(mig={"2g.20gb": 1})))
        assert message == (
            "the cluster has no GPU that could run this pod: it asks for nvidia.com/mig-2g.20gb, "
            "and no node offers any of nvidia.com/mig-2g.20gb, nvidia.com/mig-1g.10gb, "
            "nvidia.com/gpu; add a node with one of them, or ask for another resource"
        )


def test_the_fallback_can_be_off() -> None:
    document = pod(container(mig={"3g.40gb": 1}))
    assert Door(mode="off").leaves(document)
    assert Door(mode="off", nodes={}).leaves(document)


def test_pods_that_need_no_card_after_all_stay_with_their_scheduler() -> None:
    through = having("1g.10gb").passes(pod(container(mig={"3g.40gb": 1})))
    assert through["spec"]["schedulerName"] == "default-scheduler"


class TestTheEndOfTheChainAsAShare:
    """What `hami scheduler` does by default."""

    @pytest.mark.parametrize(
        ("profile", "memory", "cores"),
        [
            ("1g.5gb", 5017, 14),
            ("1g.10gb", 10035, 14),
            ("2g.20gb", 20070, 28),
            ("3g.40gb", 40140, 42),
            ("4g.71gb", 71249, 57),
        ],
    )
    def test_has_the_profiles_size(self, profile: str, memory: int, cores: int) -> None:
        through = Door().passes(pod(container(mig={profile: 1})))
        assert pods.asked(through) == {GPU: "1", MEMORY: str(memory), CORES: str(cores)}
        assert noted(through) == f"{profile}->gpu"
        assert through["spec"]["schedulerName"] == OURS

    def test_is_a_whole_card_for_a_profile_that_is_one(self) -> None:
        through = Door().passes(pod(container(mig={"7g.80gb": 1})))
        assert pods.asked(pods.defaulted(through)) == {GPU: "1", CORES: "100"}

    def test_is_one_for_each_instance(self) -> None:
        through = Door().passes(pod(container(mig={"3g.40gb": 2})))
        assert pods.asked(through) == {GPU: "2", MEMORY: "40140", CORES: "42"}

    @pytest.mark.parametrize("parts", [["limits"], ["requests"]])
    def test_is_limited_and_requested(self, parts: list[str]) -> None:
        through = Door().passes(pod(container(mig={"1g.10gb": 1}, parts=parts)))
        share = {GPU: "1", MEMORY: "10035", CORES: "14"}
        resources = through["spec"]["containers"][0]["resources"]
        assert resources == {"limits": share, "requests": share}

    def test_is_counted_in_the_units_of_the_configuration(self) -> None:
        vendor = msgspec.structs.replace(NVIDIA, memory_factor=256)
        through = Door(vendor=vendor).passes(pod(container(mig={"1g.10gb": 1})))
        assert pods.asked(through)[MEMORY] == "40"  # 39.2 units hold 10035 MiB: one more, not less

    def test_goes_by_the_configured_names(self) -> None:
        vendor = pods.renamed(count="acme.io/gpu", memory="acme.io/mem", cores="")
        door = Door(vendor=vendor, nodes={"a": {"acme.io/gpu": "1"}})
        given = pods.asked(door.passes(pod(container(mig={"1g.10gb": 1}))))
        assert given == {"acme.io/gpu": "1", "acme.io/mem": "10035"}

    def test_is_a_whole_card_where_memory_has_no_name(self) -> None:
        through = Door(vendor=pods.renamed(memory="")).passes(pod(container(mig={"1g.10gb": 1})))
        assert pods.asked(pods.defaulted(through)) == {GPU: "1", CORES: "100"}

    @pytest.mark.parametrize(
        ("profile", "besides"),
        [
            ("1g.10gb", {"gpu": 1}),
            *itertools.product(
                ["1g.10gb", "7g.80gb"],
                [{"memory": 2000}, {"percent": 10}, {"cores": 10}, {"gpu": 1, "memory": 10}],
            ),
        ],
    )
    def test_is_not_mixed_up_with_cards_asked_for_besides(self, profile: str, besides: Any) -> None:
        message = Door().refuses(pod(container(mig={profile: 1}, **besides)))
        assert message.startswith(f"container main: nvidia.com/mig-{profile} does not exist")
        assert "put the two into containers of their own, or ask for one of them" in message

    @pytest.mark.parametrize("others", [["1g.5gb"], ["7g.80gb"]])
    def test_is_not_mixed_up_with_another_missing_profile(self, others: list[str]) -> None:
        message = Door().refuses(pod(container(mig=dict.fromkeys(["3g.40gb", *others], 1))))
        assert "another profile that is missing" in message

    def test_adds_up_where_all_are_whole_cards(self) -> None:
        document = pod(container(gpu=1, mig={"7g.80gb": 1, "7g.40gb": 1}))
        through = Door().passes(document)
        assert pods.asked(pods.defaulted(through)) == {GPU: "3", CORES: "100"}

    def test_is_a_share_of_its_own_in_every_container(self) -> None:
        document = pod(
            container("a", gpu=1, memory=500),
            container("b", mig={"1g.10gb": 1}),
            init=[container("i", mig={"2g.20gb": 1})],
        )
        through = Door().passes(document)
        assert pods.asked(through) == {GPU: "1", MEMORY: "500"}
        assert pods.asked(through, 1)[MEMORY] == "10035"
        assert pods.asked(through, key="initContainers")[MEMORY] == "20070"


class TestTheEndOfTheChainAsAWholeCard:
    def test_is_a_card_for_itself_where_we_place_it(self) -> None:
        through = Door(end="whole").passes(pod(container(mig={"1g.10gb": 2})))
        assert pods.asked(pods.defaulted(through)) == {GPU: "2", CORES: "100"}
        assert through["spec"]["schedulerName"] == OURS

    def test_adds_up_with_cards_asked_for_besides(self) -> None:
        through = Door(end="whole").passes(pod(container(gpu=1, mig={"1g.10gb": 2})))
        assert pods.asked(pods.defaulted(through)) == {GPU: "3", CORES: "100"}

    def test_is_not_mixed_up_with_a_share(self) -> None:
        document = pod(container(gpu=1, memory=500, mig={"1g.10gb": 1}))
        assert "cannot be distinguished from" in Door(end="whole").refuses(document)


class TestAlone:
    """`hami webhook`, in a cluster without our scheduler."""

    @pytest.mark.parametrize("profile", ["1g.10gb", "3g.30gb", "7g.80gb"])
    @pytest.mark.parametrize("parts", [["limits"], ["requests"], ["limits", "requests"]])
    def test_it_leaves_exactly_one_gpu(self, profile: str, parts: list[str]) -> None:
        answer = Door.alone().send(pod(container(mig={profile: 1}, parts=parts)))
        resources = answer.pod["spec"]["containers"][0]["resources"]
        assert resources == {"limits": {GPU: "1"}, "requests": {GPU: "1"}}
        assert noted(answer.pod) == f"{profile}->gpu"
        assert answer.pod["spec"]["schedulerName"] == "default-scheduler"
        assert {path.split("/")[1] for path in answer.paths} == {"metadata", "spec"}

    def test_it_moves_down_the_chain_of_the_first_webhook(self) -> None:
        for has, want in {"3g.30gb": None, "2g.20gb": "2g.20gb", "1g.10gb": "1g.10gb"}.items():
            door = Door.alone(nodes={"a": {f"{MIG}{has}": "4", GPU: "4"}})
            through = door.passes(pod(container(mig={"3g.30gb": 1})))
            assert noted(through) == (want and f"3g.30gb->{want}")

    @pytest.mark.parametrize(
        "document",
        [
            pod(container(gpu=1)),
            pod(container(gpu=1, memory=1000, privileged=True), nodeName="a"),
            pod(container(priority=0, percent=500)),
            pod(container(), annotations={annotation_keys.ASSIGNED_NODE: "a"}),
            pod(container(gpu="1.5"), schedulerName="volcano"),
        ],
        ids=str,
    )
    def test_it_touches_no_other_pod(self, document: Document) -> None:
        answer = Door.alone(nvidia={"overwrite_env": True}).send(document)
        assert (answer.allowed, answer.patch) == (True, [])

    def test_it_moves_pods_of_every_scheduler(self) -> None:
        document = pod(container(mig={"3g.30gb": 1}), schedulerName="volcano")
        through = Door.alone().passes(document)
        assert noted(through) == "3g.30gb->gpu"
        assert through["spec"]["schedulerName"] == "volcano"

    def test_it_leaves_mirror_pods_alone(self) -> None:
        document = pod(
            container(mig={"3g.30gb": 1}),
            annotations={annotation_keys.MIRROR: "hash"},
            nodeName="a",
        )
        assert Door.alone().leaves(document)


def test_the_chains_are_configuration() -> None:
    profiles = """
chains:
- [3g.40gb, 1g.10gb]
- [{profile: 4g.24gb, memory: 23000, cores: 90}, 2g.12gb]
"""
    door = Door(nodes={"a": {f"{MIG}2g.20gb": "1", GPU: "1"}}, profiles=profiles)
    assert noted(door.passes(pod(container(mig={"3g.40gb": 1})))) == "3g.40gb->gpu"
    through = door.passes(pod(container(mig={"4g.24gb": 1})))
    assert pods.asked(through) == {GPU: "1", MEMORY: "23000", CORES: "90"}
    assert door.leaves(pod(container(mig={"7g.80gb": 1})))


def test_the_example_deployment_falls_back_replica_by_replica() -> None:
    """The cluster changes between two replicas of one template, and each gets what there is."""
    template = pod(container("worker", mig={"2g.20gb": 1}, parts=["requests"]))
    door = Door.alone(nodes={"a": {GPU: "4"}})
    assert noted(door.passes(template)) == "2g.20gb->gpu"
    door.mig_offer.set_node("b", {f"{MIG}1g.10gb": "7"})
    assert noted(door.passes(template)) == "2g.20gb->1g.10gb"
    door.mig_offer.set_node("b", {f"{MIG}2g.20gb": "3"})
    through = door.passes(template)
    # Kubernetes wants a limit for what is requested of such a resource.
    assert through["spec"]["containers"][0]["resources"] == {
        "limits": {f"{MIG}2g.20gb": "1"},
        "requests": {f"{MIG}2g.20gb": "1"},
    }
    assert "annotations" not in through["metadata"]
    assert door.leaves(through)
    door.mig_offer.set_node("b", {})
    assert noted(door.passes(template)) == "2g.20gb->gpu"
    door.mig_offer.set_node("a", {})
    assert "no node offers any of" in door.refuses(template)
