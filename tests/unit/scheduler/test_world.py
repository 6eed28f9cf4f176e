"""What the API server shows becomes the cluster's state, and whoever waits is told."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

from hami.cluster.pod_info import Hold
from hami.placement import decide, request
from hami.scheduler.assumed_pods import AssumedPods, Stage
from hami.scheduler.informers import World
from hami.wire import node_marks, node_register, objects
from tests import builders
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
def world(times: Times) -> World:
    return World(builders.VENDORS, reservation_timeout=LIFE_S, now=lambda: times.now)


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


def book(world: World, times: Times, pod: objects.Pod) -> tuple[AssumedPods, request.PodRequest]:
    bookings = AssumedPods(world, clock=lambda: times.clock, timeout=900)
    wanted = request.parse(pod, builders.VENDORS, request.Defaults())
    assert wanted is not None
    winner = decide.decide(world.cluster, wanted).winner
    assert winner is not None
    bookings.assume(wanted, winner)
    return bookings, wanted


def test_a_node_is_known_at_once_and_forgotten_at_once(world: World) -> None:
    world.nodes.put(node("a"))
    assert "a" in world.cluster.nodes
    world.nodes.drop("uid-a")
    assert "a" not in world.cluster.nodes
    assert world.nodes.get("a") is None


def test_a_node_made_again_under_its_name_survives_the_end_of_the_old_one(world: World) -> None:
    world.nodes.put(node("a", 1, "old"))
    world.nodes.put(node("a", 5, "new"))
    world.nodes.drop("old")
    assert "a" in world.cluster.nodes
    world.nodes.retain({"new"})
    assert "a" in world.cluster.nodes
    world.nodes.retain(set())
    assert "a" not in world.cluster.nodes


def test_an_older_sight_of_a_node_does_not_undo_a_newer_one(world: World) -> None:
    lock = {"hami.io/mutex.lock": "2026-11-15T12:00:00Z,team,train"}
    world.nodes.put(node("a", 7, **lock))
    world.nodes.put(node("a", 6))
    record = world.nodes.get("a")
    assert record is not None
    assert record.lock == lock["hami.io/mutex.lock"]


def test_a_node_needs_no_lock_only_with_a_mark_that_fits_its_cards(world: World) -> None:
    register = node_register.encode_json(builders.cards("a", 2))
    key = NVIDIA.annotations.binding
    world.nodes.put(node("a", 1, "", **{key: node_marks.late_binding_mark(register)}))
    world.nodes.put(node("b", 1, "", **{key: node_marks.late_binding_mark("another list")}))
    world.nodes.put(node("c"))
    late = {record.name: record.late for record in world.nodes.records()}
    assert late == {"a": {NVIDIA.name}, "b": frozenset(), "c": frozenset()}


async def test_whoever_waits_for_a_node_hears_of_its_change(world: World) -> None:
    world.nodes.put(node("a"))
    never: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    waiting = asyncio.create_task(world.nodes.changed("a", within=60, unless=never))
    await asyncio.sleep(0)
    world.nodes.put(node("a", 2))
    await asyncio.wait_for(waiting, PATIENCE_S)


def test_room_is_told_when_a_pod_ends_and_not_when_it_is_bound(world: World, times: Times) -> None:
    told: list[tuple[str, str]] = []
    world.nodes.put(node("a"))
    world.room.listen(lambda where, namespace: told.append((where, namespace)))
    pod = builders.pod("p", builders.container(gpu=1, memory=1000))
    bookings, _ = book(world, times, pod)
    card = world.cluster.pods["p"].shares[0][1][0][0].card
    bound = builders.granted("p", "a", [(card, 1000, 0)])
    world.pods.put(bound)
    assert told == []
    assert bookings.get("p") is None
    world.pods.drop("p")
    assert told == [("a", "default")]


def test_a_bound_pod_ends_its_booking_and_keeps_its_cards(world: World, times: Times) -> None:
    world.nodes.put(node("a"))
    bookings, _ = book(world, times, builders.pod("p", builders.container(gpu=1, memory=1000)))
    booking = bookings.get("p")
    assert booking is not None
    card = world.cluster.pods["p"].shares[0][1][0][0].card
    world.pods.put(builders.granted("p", "a", [(card, 1000, 0)]))
    assert booking.stage is Stage.OVER
    assert world.cluster.pods["p"].hold is Hold.BOUND


def test_an_answer_that_was_on_its_way_does_not_bring_a_deleted_pod_back(world: World) -> None:
    world.nodes.put(node("a"))
    pod = builders.granted("p", "a", [("a-0", 1000, 0)])
    world.pods.put(pod)
    world.pods.drop("p")
    world.pods.put(pod)
    assert "p" not in world.cluster.pods
    assert world.pods.is_gone("p")


def test_a_list_without_a_pod_ends_it_but_not_a_reservation_nobody_has_seen(
    world: World, times: Times
) -> None:
    world.nodes.put(node("a"))
    world.pods.put(builders.granted("seen", "a", [("a-0", 1000, 0)]))
    book(world, times, builders.pod("new", builders.container(gpu=1, memory=1000)))
    world.pods.retain(set())
    assert set(world.cluster.pods) == {"new"}


def test_a_reservation_that_nobody_binds_lapses(world: World, times: Times) -> None:
    world.nodes.put(node("a"))
    bookings, _ = book(world, times, builders.pod("p", builders.container(gpu=1)))
    times.clock += 899
    assert bookings.expire() == []
    times.clock += 2
    assert [booking.uid for booking in bookings.expire()] == ["p"]
    assert not world.cluster.pods


@pytest.mark.parametrize("stage", [Stage.BINDING, Stage.UNKNOWN, Stage.ACCEPTED])
def test_a_booking_with_a_binding_on_its_way_never_lapses(
    world: World, times: Times, stage: Stage
) -> None:
    world.nodes.put(node("a"))
    bookings, _ = book(world, times, builders.pod("p", builders.container(gpu=1)))
    booking = bookings.get("p")
    assert booking is not None
    bookings.enter(booking, stage)
    times.clock += 100_000
    assert bookings.expire() == []
    bookings.release_held()
    assert "p" in world.cluster.pods


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


def test_a_decision_that_stands_in_annotations_only_ends_by_its_age(
    world: World, times: Times
) -> None:
    world.nodes.put(node("a"))
    world.pods.put(annotated("young", times.now))
    world.pods.put(annotated("old", times.now - 901))
    assert set(world.cluster.pods) == {"young"}
    times.now += 901
    assert world.pods.end_stale_annotations() == ["young"]
    assert not world.cluster.pods
    world.pods.put(annotated("young", times.now - 901))
    assert not world.cluster.pods


def test_a_decision_from_the_future_buys_no_time(world: World, times: Times) -> None:
    world.nodes.put(node("a"))
    world.pods.put(annotated("p", times.now + 100_000))
    times.now += LIFE_S + 1
    assert world.pods.end_stale_annotations() == ["p"]


def test_a_quota_made_again_under_its_name_stays(world: World) -> None:
    def quota(uid: str) -> objects.ResourceQuota:
        return objects.ResourceQuota(
            metadata=objects.Metadata(name="q", namespace="team", uid=uid),
            spec=objects.QuotaSpec(hard={"limits.nvidia.com/gpumem": "1000"}),
        )

    world.quotas.put(quota("old"))
    world.quotas.put(quota("new"))
    world.quotas.drop("old")
    assert world.cluster.quotas.limit("team", "nvidia.com/gpumem") == 1000
    world.quotas.retain(set())
    assert world.cluster.quotas.limit("team", "nvidia.com/gpumem") is None


def test_an_answer_that_was_on_its_way_does_not_bring_a_deleted_node_back(world: World) -> None:
    world.nodes.put(node("a", 1))
    world.nodes.drop("uid-a")
    world.nodes.put(node("a", 2))
    assert "a" not in world.cluster.nodes
    world.nodes.put(node("a", 3, "another"))
    assert "a" in world.cluster.nodes
