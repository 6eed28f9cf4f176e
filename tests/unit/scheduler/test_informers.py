"""The cluster's state, made of what the API server shows."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import msgspec
import pytest

from hami.cluster.pod_info import Hold
from hami.kube.client import Client
from hami.placement import decide, request
from hami.scheduler.assumed_pods import AssumedPods, Stage
from hami.scheduler.informers import Room, WatchedCluster
from hami.wire import node_marks, node_register, objects
from tests import builders, feeding
from tests.builders import NVIDIA
from tests.unit.kube.following import PATIENCE_S

LIFE_S = 900.0


class Times:
    def __init__(self) -> None:
        self.now = 1_800_000_000.0
        self.clock = 50.0


@pytest.fixture
def times() -> Times:
    return Times()


@pytest.fixture
def watched(times: Times) -> WatchedCluster:
    no_server = cast("Client", None)
    return WatchedCluster(
        no_server, builders.VENDORS, reservation_timeout=LIFE_S, now=lambda: times.now
    )


def versioned(obj: Any, version: int, uid: str = "") -> Any:
    metadata = msgspec.structs.replace(
        obj.metadata, resource_version=str(version), uid=uid or obj.metadata.uid or obj.name
    )
    return msgspec.structs.replace(obj, metadata=metadata)


def node(name: str, version: int = 1, uid: str = "", **annotations: str) -> objects.Node:
    made: objects.Node = versioned(
        builders.node(name, builders.cards(name, 2), **annotations), version, uid or f"uid-{name}"
    )
    return made


def assume(
    watched: WatchedCluster, times: Times, pod: objects.Pod
) -> tuple[AssumedPods, request.PodRequest]:
    assumed_pods = AssumedPods(watched, clock=lambda: times.clock, timeout=900)
    wanted = request.parse(pod, builders.VENDORS, request.Defaults())
    assert wanted is not None
    winner = decide.decide(watched.cluster, wanted).winner
    assert winner is not None
    assumed_pods.assume(pod, wanted, winner)
    return assumed_pods, wanted


def test_a_node_is_known_at_once_and_forgotten_at_once(watched: WatchedCluster) -> None:
    feeding.put(watched.nodes, node("a"))
    assert "a" in watched.cluster.nodes
    feeding.drop(watched.nodes, "uid-a")
    assert "a" not in watched.cluster.nodes
    assert watched.nodes.by_key("a") is None


def test_a_node_made_again_under_its_name_survives_the_end_of_the_old_one(
    watched: WatchedCluster,
) -> None:
    feeding.put(watched.nodes, node("a", 1, "old"))
    feeding.put(watched.nodes, node("a", 5, "new"))
    feeding.drop(watched.nodes, "old")
    assert "a" in watched.cluster.nodes
    feeding.retain(watched.nodes, {"new"})
    assert "a" in watched.cluster.nodes
    feeding.retain(watched.nodes, set())
    assert "a" not in watched.cluster.nodes


def test_an_older_sight_of_a_node_does_not_undo_a_newer_one(watched: WatchedCluster) -> None:
    lock = {"hami.io/mutex.lock": "2026-11-15T12:00:00Z,team,train"}
    feeding.put(watched.nodes, node("a", 7, **lock))
    feeding.put(watched.nodes, node("a", 6))
    record = watched.nodes.by_key("a")
    assert record is not None
    assert record.lock() == lock["hami.io/mutex.lock"]


def test_a_node_needs_no_lock_only_with_a_mark_that_fits_its_cards(watched: WatchedCluster) -> None:
    register = node_register.encode_json(builders.cards("a", 2))
    key = NVIDIA.annotations.binding
    feeding.put(watched.nodes, node("a", 1, "", **{key: node_marks.late_binding_mark(register)}))
    feeding.put(
        watched.nodes, node("b", 1, "", **{key: node_marks.late_binding_mark("another list")})
    )
    feeding.put(watched.nodes, node("c"))
    late = {record.name: record.late for record in watched.nodes}
    assert late == {"a": {NVIDIA.name}, "b": frozenset(), "c": frozenset()}


async def test_a_wait_for_a_node_ends_with_its_change(watched: WatchedCluster) -> None:
    feeding.put(watched.nodes, node("a"))
    known = watched.nodes.by_key("a")
    waiting = asyncio.create_task(watched.nodes.wait("a", lambda node: node is not known, None))
    await asyncio.sleep(0)
    feeding.put(watched.nodes, node("a", 2))
    await asyncio.wait_for(waiting, PATIENCE_S)


def test_room_is_noted_when_a_pod_ends_and_not_when_it_is_bound(
    watched: WatchedCluster, times: Times
) -> None:
    feeding.put(watched.nodes, node("a"))
    watched.take_room()
    pod = builders.pod("p", builders.container(gpu=1, memory=1000))
    assumed_pods, _ = assume(watched, times, pod)
    card = watched.cluster.pods["p"].shares[0][1][0][0].card
    bound = builders.granted("p", "a", [(card, 1000, 0)])
    feeding.put(watched.pods, bound)
    assert watched.take_room() == []
    assert assumed_pods.get("p") is None
    feeding.drop(watched.pods, "p")
    assert watched.take_room() == [Room("a", "default")]


def test_a_bound_pod_is_not_assumed_any_more_and_keeps_its_cards(
    watched: WatchedCluster, times: Times
) -> None:
    feeding.put(watched.nodes, node("a"))
    assumed_pods, _ = assume(
        watched, times, builders.pod("p", builders.container(gpu=1, memory=1000))
    )
    assumed = assumed_pods.get("p")
    assert assumed is not None
    card = watched.cluster.pods["p"].shares[0][1][0][0].card
    feeding.put(watched.pods, builders.granted("p", "a", [(card, 1000, 0)]))
    assert assumed.stage is Stage.OVER
    assert watched.cluster.pods["p"].hold is Hold.BOUND


def test_an_answer_that_was_on_its_way_does_not_bring_a_deleted_pod_back(
    watched: WatchedCluster,
) -> None:
    feeding.put(watched.nodes, node("a"))
    pod = versioned(builders.granted("p", "a", [("a-0", 1000, 0)]), 5)
    feeding.put(watched.pods, pod)
    feeding.drop(watched.pods, "p")
    feeding.put(watched.pods, pod)
    assert "p" not in watched.cluster.pods
    assert watched.has_ended("p")


def test_a_list_without_a_pod_ends_it_but_not_a_reservation_that_no_list_shows(
    watched: WatchedCluster, times: Times
) -> None:
    feeding.put(watched.nodes, node("a"))
    feeding.put(watched.pods, builders.granted("seen", "a", [("a-0", 1000, 0)]))
    assume(watched, times, builders.pod("new", builders.container(gpu=1, memory=1000)))
    feeding.retain(watched.pods, set())
    assert set(watched.cluster.pods) == {"new"}


def test_a_reservation_that_is_not_bound_lapses(watched: WatchedCluster, times: Times) -> None:
    feeding.put(watched.nodes, node("a"))
    assumed_pods, _ = assume(watched, times, builders.pod("p", builders.container(gpu=1)))
    times.clock += 29
    assert assumed_pods.expire() == []
    times.clock += 1
    assert [assumed.uid for assumed in assumed_pods.expire()] == ["p"]
    assert not watched.cluster.pods


@pytest.mark.parametrize("stage", [Stage.BINDING, Stage.UNKNOWN, Stage.ACCEPTED])
def test_an_assumed_pod_with_a_binding_on_its_way_never_lapses(
    watched: WatchedCluster, times: Times, stage: Stage
) -> None:
    feeding.put(watched.nodes, node("a"))
    assumed_pods, _ = assume(watched, times, builders.pod("p", builders.container(gpu=1)))
    assumed = assumed_pods.get("p")
    assert assumed is not None
    assumed_pods.enter(assumed, stage)
    times.clock += 100_000
    assert assumed_pods.expire() == []
    assumed_pods.release_held()
    assert "p" in watched.cluster.pods


def annotated(uid: str, seconds: float) -> objects.Pod:
    return builders.pod(
        uid,
        builders.container(gpu=1, memory=1000),
        annotations={
            "hami.io/vgpu-node": "a",
            "hami.io/vgpu-time": str(int(seconds)),
            NVIDIA.annotations.allocated: "a-0,NVIDIA,1000,0:;",
        },
    )


def test_a_decision_that_is_in_annotations_only_ends_by_its_age(
    watched: WatchedCluster, times: Times
) -> None:
    feeding.put(watched.nodes, node("a"))
    feeding.put(watched.pods, annotated("young", times.now))
    feeding.put(watched.pods, annotated("old", times.now - 901))
    assert set(watched.cluster.pods) == {"young"}
    times.now += 901
    assert watched.end_expired() == ["young"]
    assert not watched.cluster.pods
    feeding.put(watched.pods, annotated("young", times.now - 901))
    assert not watched.cluster.pods


def test_a_decision_from_the_future_buys_no_time(watched: WatchedCluster, times: Times) -> None:
    feeding.put(watched.nodes, node("a"))
    feeding.put(watched.pods, annotated("p", times.now + 100_000))
    times.now += LIFE_S + 1
    assert watched.end_expired() == ["p"]


FORMS = {"hami.io/node-grant-forms": "v3:00000000"}


@pytest.mark.parametrize(
    ("memory", "phase", "annotations", "kept"),
    [
        pytest.param(8000, "Running", FORMS, True, id="whole-card"),
        pytest.param(7999, "Running", FORMS, False, id="limited"),
        pytest.param(8000, "Failed", FORMS, False, id="ended"),
        pytest.param(8000, "Running", {}, False, id="no-agent-of-ours"),
    ],
)
def test_whole_cards_of_a_pod_deleted_by_force_are_kept_until_its_agent_can_close_them(
    watched: WatchedCluster,
    times: Times,
    *,
    memory: int,
    phase: str,
    annotations: dict[str, Any],
    kept: bool,
) -> None:
    feeding.put(watched.nodes, node("a", **annotations))
    pod = builders.granted("p", "a", [("a-0", memory, 0)], phase=phase)
    feeding.put(watched.pods, versioned(pod, 1))
    watched.take_room()
    feeding.drop(watched.pods, "p")
    assert ("p" in watched.cluster.pods) == kept
    assert bool(watched.take_room()) == (not kept and phase == "Running")
    times.now += 2.9
    assert watched.end_expired() == []
    assert ("p" in watched.cluster.pods) == kept
    times.now += 0.2
    assert watched.end_expired() == []
    assert not watched.cluster.pods
    assert bool(watched.take_room()) == kept


def test_a_clock_that_is_set_back_keeps_no_card_of_a_deleted_pod(
    watched: WatchedCluster, times: Times
) -> None:
    feeding.put(watched.nodes, node("a", 1, **FORMS))
    pod = builders.granted("p", "a", [("a-0", 8000, 0)], phase="Running")
    feeding.put(watched.pods, versioned(pod, 1))
    feeding.drop(watched.pods, "p")
    times.now -= 3600
    watched.end_expired()
    times.now += 3.1
    watched.end_expired()
    assert not watched.cluster.pods


def test_a_quota_made_again_under_its_name_stays(watched: WatchedCluster) -> None:
    def quota(uid: str) -> objects.ResourceQuota:
        return objects.ResourceQuota(
            metadata=objects.Metadata(name="q", namespace="team", uid=uid),
            spec=objects.QuotaSpec(hard={"limits.nvidia.com/gpumem": "1000"}),
        )

    feeding.put(watched.quotas, quota("old"))
    feeding.put(watched.quotas, quota("new"))
    feeding.drop(watched.quotas, "old")
    assert watched.cluster.quotas.limit("team", "nvidia.com/gpumem") == 1000
    feeding.retain(watched.quotas, set())
    assert watched.cluster.quotas.limit("team", "nvidia.com/gpumem") is None


def test_an_answer_that_was_on_its_way_does_not_bring_a_deleted_node_back(
    watched: WatchedCluster,
) -> None:
    feeding.put(watched.nodes, node("a", 1))
    feeding.drop(watched.nodes, "uid-a")
    feeding.put(watched.nodes, node("a", 2))
    assert "a" not in watched.cluster.nodes
    feeding.put(watched.nodes, node("a", 3, "another"))
    assert "a" in watched.cluster.nodes
