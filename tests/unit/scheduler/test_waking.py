"""Requeue: cards become free, and kube-scheduler is made to retry, once.

The rounds are made by hand and the clocks stand still, so each write has its one cause.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import AsyncIterator
from typing import Any

import pytest

from hami.placement import decide
from hami.scheduler import requeue
from hami.wire import annotation_keys
from tests.builders import MEMORY
from tests.scripted_api.server import ScriptedApi
from tests.unit.scheduler import rig
from tests.unit.scheduler.conftest import Times


class Cluster:
    """Full nodes, and pods that wait for room."""

    def __init__(self, api: ScriptedApi, replica: rig.Replica) -> None:
        self.api = api
        self.replica = replica

    async def wait(self, name: str, memory: int = 8000, **metadata: Any) -> rig.Object:
        """Let a pod be refused."""
        pod = self.api.find("pods", name) or self.api.put(rig.pod(name, memory=memory, **metadata))
        answer = await self.replica.filter(pod)
        assert answer["NodeNames"] is None, answer
        return pod

    async def look(self) -> list[str]:
        """Make a round once everything is seen; returns the nodes that it touched."""
        await self.replica.seen()
        return await self.look_now()

    async def look_now(self) -> list[str]:
        begin = len(self.touched())
        await self.replica.scheduler.requeue.run_round()
        return self.touched()[begin:]

    def touched(self) -> list[str]:
        key = annotation_keys.REQUEUE.encode()
        sent = [r for r in self.api.sent("PATCH", "/api/v1/nodes/") if key in r.body]
        return [request.path.rsplit("/", 1)[1] for request in sent]


@contextlib.asynccontextmanager
async def full(
    times: Times, *names: str, minor: str = "36", **settings: Any
) -> AsyncIterator[Cluster]:
    """Run a replica with a node of each name, each held by a pod `on-<name>`."""
    async with ScriptedApi() as api:
        api.minor = minor
        for name in names:
            api.put(rig.node(name))
        async with rig.running(api, clock=times.clock, now=times.now, **settings) as replica:
            for name in names:
                pod = api.put(rig.pod(f"on-{name}", memory=8000))
                assert (await replica.filter(pod, [name]))["NodeNames"] == [name]
                assert await replica.bind(pod, name) == ""
            await replica.seen()
            # What is not known yet is taken for old.
            await rig.eventually(
                lambda: not minor or replica.scheduler.kube_version.minor is not None
            )
            yield Cluster(api, replica)


async def test_a_deleted_pod_makes_one_write_on_its_node(times: Times) -> None:
    async with full(times, "a", "b", "c") as cluster:
        await cluster.wait("p")
        assert await cluster.look() == []
        cluster.api.remove("pods", "on-b")
        assert await cluster.look() == ["b"]
        node = cluster.api.find("nodes", "b")
        assert node is not None
        assert node["metadata"]["annotations"][annotation_keys.REQUEUE] == f"{times.wall:.3f}"
        assert await cluster.look() == []
        assert cluster.replica.scheduler.requeue.sent == 1


async def test_a_finished_pod_makes_room_too(times: Times) -> None:
    async with full(times, "a", "b") as cluster:
        await cluster.wait("p")
        pod = cluster.api.find("pods", "on-a")
        assert pod is not None
        cluster.api.put({**pod, "status": {"phase": "Succeeded"}})
        assert await cluster.look() == ["a"]


async def test_a_node_that_gets_a_card_makes_room(times: Times) -> None:
    async with full(times, "a", "b") as cluster:
        await cluster.wait("p")
        cluster.api.put(rig.node("b", cards=2))
        assert await cluster.look() == ["b"]


async def test_a_new_node_makes_room(times: Times) -> None:
    async with full(times, "a") as cluster:
        await cluster.wait("p")
        cluster.api.put(rig.node("new"))
        assert await cluster.look() == ["new"]


def quota(memory: int) -> rig.Object:
    return {
        "kind": "ResourceQuota",
        "metadata": {"name": "q", "namespace": "default"},
        "spec": {"hard": {f"limits.{MEMORY}": str(memory)}},
    }


@pytest.mark.parametrize("how", ["raised", "removed"])
async def test_a_quota_that_gives_way_makes_room(times: Times, how: str) -> None:
    async with full(times) as cluster:
        cluster.api.put(quota(1000))
        cluster.api.put(rig.node("a"))
        await cluster.replica.seen()
        await cluster.wait("p", memory=2000)
        assert await cluster.look() == []
        if how == "raised":
            cluster.api.put(quota(2000))
        else:
            cluster.api.remove("resourcequotas", "q")
        assert await cluster.look() == ["a"]


async def test_a_pod_deleted_elsewhere_makes_room_in_the_quota(times: Times) -> None:
    async with full(times, "a") as cluster:
        cluster.api.put(quota(8000))
        cluster.api.put(rig.node("empty"))
        await cluster.replica.seen()
        await cluster.wait("p", memory=1000)
        cluster.api.remove("pods", "on-a")
        (touched,) = await cluster.look()
        assert touched in ("a", "empty")


async def test_a_reservation_that_lapses_makes_room(times: Times) -> None:
    async with full(times, reservation_timeout=900) as cluster:
        cluster.api.put(rig.node("a"))
        await cluster.replica.seen()
        held = cluster.api.put(rig.pod("held", memory=8000))
        assert (await cluster.replica.filter(held))["NodeNames"] == ["a"]
        await cluster.wait("p")
        times.pass_by(900)
        cluster.replica.scheduler.maintenance.run_round()
        assert await cluster.look() == ["a"]


async def test_a_bind_that_is_refused_makes_room(times: Times) -> None:
    async with full(times) as cluster:
        cluster.api.put(rig.node("a"))
        await cluster.replica.seen()
        held = cluster.api.put(rig.pod("held", memory=8000))
        await cluster.replica.filter(held)
        await cluster.wait("p")
        cluster.api.fault(method="POST", path="/binding", status=403)
        assert await cluster.replica.bind(held, "a")
        assert await cluster.look() == ["a"]


async def test_room_that_is_too_small_requeues_no_pod(times: Times) -> None:
    async with full(times) as cluster:
        cluster.api.put(rig.node("a"))
        await cluster.replica.seen()
        for name, memory in (("small", 1000), ("large", 7000)):
            await cluster.replica.place(rig.pod(name, memory=memory))
        await cluster.wait("p", memory=8000)
        cluster.api.remove("pods", "small")
        assert await cluster.look() == []
        cluster.api.remove("pods", "large")
        assert await cluster.look() == ["a"]


async def test_room_that_the_pod_does_not_want_requeues_no_pod(times: Times) -> None:
    async with full(times, "a") as cluster:
        await cluster.wait("p", annotations={"nvidia.com/use-gputype": "H100"})
        cluster.api.remove("pods", "on-a")
        assert await cluster.look() == []


async def test_without_unschedulable_pods_nothing_is_written(times: Times) -> None:
    async with full(times, "a", "b") as cluster:
        cluster.api.remove("pods", "on-a")
        assert await cluster.look() == []
        # Neither when every unschedulable pod is deleted, or placed.
        await cluster.wait("p", memory=8001)
        await cluster.wait("q", memory=8002)
        cluster.api.remove("pods", "on-b")
        cluster.api.remove("pods", "p")
        pod = cluster.api.find("pods", "q")
        assert pod is not None
        pod["spec"]["nodeName"] = "elsewhere"
        cluster.api.put(pod)
        assert await cluster.look() == []
        assert len(cluster.replica.scheduler.unschedulable) == 0


async def test_a_node_is_touched_at_most_once_a_second(times: Times) -> None:
    async with full(times) as cluster:
        cluster.api.put(rig.node("a"))
        await cluster.replica.seen()
        for number in range(8):
            await cluster.replica.place(rig.pod(f"small-{number}"))
        for _ in range(2):
            await cluster.wait("p", memory=1000)
        cluster.api.remove("pods", "small-0")
        assert await cluster.look() == ["a"]
        for number in range(1, 4):
            cluster.api.remove("pods", f"small-{number}")
            times.pass_by(0.3)
            assert await cluster.look() == []
        times.pass_by(0.2)
        # What was held back is made up for, once.
        assert await cluster.look() == ["a"]
        times.pass_by(1.1)
        assert await cluster.look() == []


async def test_one_write_requeues_every_pod_so_there_is_only_one(times: Times) -> None:
    async with full(times, "a", "b") as cluster:
        for number in range(20):
            await cluster.wait(f"p-{number}", memory=1000 + number % 3)
        cluster.api.remove("pods", "on-a")
        assert await cluster.look() == ["a"]


async def test_a_follower_requeues_no_pod_and_makes_up_for_it_when_it_leads(
    times: Times, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with full(times, "a") as cluster:
        await cluster.wait("p")
        leadership = cluster.replica.scheduler.leadership
        monkeypatch.setattr(leadership, "_until", 0.0)
        cluster.api.remove("pods", "on-a")
        assert await cluster.look() == []
        monkeypatch.undo()
        leadership.tick()
        await cluster.replica.scheduler.readiness.require(5)
        assert await cluster.look() == ["a"]


async def test_a_woken_pod_that_does_not_come_back_is_woken_again_ever_less_often(
    times: Times,
) -> None:
    async with full(times, "a") as cluster:
        await cluster.wait("p")
        cluster.api.remove("pods", "on-a")
        assert await cluster.look() == ["a"]
        begin, woken = times.seconds, []
        for _ in range(1000):
            times.pass_by(1)
            if await cluster.look_now():
                woken.append(round(times.seconds - begin))
        gaps = [later - sooner for sooner, later in itertools.pairwise([0, *woken])]
        assert gaps == [1, 20, 40, 80, 160, 300, 300]
        (waiting,) = cluster.replica.scheduler.unschedulable
        waiting.group.tries = 100_000
        times.pass_by(300)
        assert await cluster.look_now() == ["a"]


async def test_a_requeued_pod_that_is_refused_again_starts_over(times: Times) -> None:
    async with full(times, "a") as cluster:
        for _ in range(4):
            await cluster.wait("p", memory=8000)
            cluster.api.remove("pods", "on-a")
            assert await cluster.look() == ["a"]
            # Another was faster.
            taken = cluster.api.put(rig.pod("on-a", memory=8000))
            await cluster.replica.filter(taken)
            await cluster.replica.bind(taken, "a")
            await cluster.replica.seen()
            await cluster.wait("p")
            times.pass_by(2)
        waiting = next(iter(cluster.replica.scheduler.unschedulable))
        assert waiting.group.tries == 0
        assert waiting.refusals == 8


async def test_looking_again_without_room_writes_nothing_and_costs_little(
    times: Times, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with full(times, "a") as cluster:
        decisions = count_decisions(monkeypatch)
        await cluster.wait("p")
        for _ in range(600):
            times.pass_by(0.05)
            assert await cluster.look_now() == []
        # Thirty seconds: looked at after 5 and after 15, not in every round.
        assert len(decisions) <= 4


async def test_a_requeue_that_could_not_be_written_is_written_later(times: Times) -> None:
    async with full(times, "a") as cluster:
        await cluster.wait("p")
        cluster.api.remove("pods", "on-a")
        fault = cluster.api.fault(method="PATCH", path="/nodes/a", status=500)
        await cluster.look()
        assert fault.hits == 1
        assert cluster.replica.scheduler.requeue.sent == 0
        times.pass_by(1)
        assert await cluster.look() == ["a"]
        assert cluster.replica.scheduler.requeue.sent == 1


def count_decisions(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Note the pods that are tried in rounds from now on."""
    tried: list[str] = []
    truly = decide.decide

    def noting(cluster: Any, pod: Any, names: Any = None) -> Any:
        tried.append(pod.name)
        return truly(cluster, pod, names)

    monkeypatch.setattr(decide, "decide", noting)
    return tried


@pytest.mark.parametrize("how", ["node", "quota", "due"])
async def test_of_many_different_pods_every_pod_has_a_turn(
    times: Times, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    monkeypatch.setattr(requeue, "TRIED_PER_ROUND", 4)
    async with full(times) as cluster:
        cluster.api.put(rig.node("a"))
        cluster.api.put(quota(7000))
        await cluster.replica.seen()
        await cluster.replica.place(rig.pod("first", memory=5000))
        await cluster.replica.place(rig.pod("second", memory=2000))
        for number in range(20):
            await cluster.wait(f"never-{number}", memory=9000 + number)
        await cluster.wait("fits", memory=2000)
        tried = count_decisions(monkeypatch)
        if how == "node":
            cluster.api.remove("pods", "second")
        elif how == "quota":
            cluster.api.put(quota(9000))
            cluster.api.put(rig.node("b"))
        else:
            cluster.api.remove("pods", "second")
            times.pass_by(5)
        await cluster.replica.seen()
        if how == "due":
            cluster.replica.scheduler.watched.take_room()  # the room is not noted anywhere
        touched = []
        for rounds in range(20):
            before = len(tried)
            touched += await cluster.look_now()
            assert len(tried) - before <= 4, f"in round {rounds}"
            times.pass_by(0.05)
        assert len(touched) == 1
        assert "fits" in tried


async def test_constant_change_does_not_keep_the_last_from_their_turn(
    times: Times, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(requeue, "TRIED_PER_ROUND", 4)
    async with full(times) as cluster:
        cluster.api.put(rig.node("a"))
        await cluster.replica.seen()
        await cluster.replica.place(rig.pod("on-a", memory=8000))
        for number in range(20):
            await cluster.wait(f"never-{number}", memory=9000 + number)
        await cluster.wait("fits", memory=2000)
        cluster.api.remove("pods", "on-a")
        await cluster.replica.seen()
        touched = []
        for _ in range(20):
            touched += await cluster.look_now()
            cluster.replica.scheduler.watched.room("a", "default")
            times.pass_by(0.05)
        assert touched == ["a"]


def pods_touched(api: ScriptedApi) -> list[str]:
    key = annotation_keys.REQUEUE.encode()
    sent = [r for r in api.sent("PATCH", "/pods/") if key in r.body]
    return [request.path.rsplit("/", 1)[1] for request in sent]


async def test_a_pod_that_does_not_come_back_after_a_second_is_touched_itself(
    times: Times,
) -> None:
    async with full(times, "a") as cluster:
        await cluster.wait("p")
        cluster.api.remove("pods", "on-a")
        assert await cluster.look() == ["a"]
        assert pods_touched(cluster.api) == []
        times.pass_by(1)
        assert await cluster.look_now() == ["a"]
        assert pods_touched(cluster.api) == ["p"]


@pytest.mark.parametrize("minor", ["30", "31+", ""])
async def test_where_node_events_are_not_heard_the_pods_are_touched_at_once(
    times: Times, minor: str
) -> None:
    async with full(times, "a", minor=minor) as cluster:
        for name in ("p", "q"):
            await cluster.wait(name)
        cluster.api.remove("pods", "on-a")
        assert await cluster.look() == ["a"]
        assert pods_touched(cluster.api) == ["p", "q"]


async def test_a_namesake_of_the_waiting_pod_is_not_touched(times: Times) -> None:
    async with full(times, "a", minor="30") as cluster:
        await cluster.wait("p")
        cluster.api.faults.clear()
        old = cluster.api.find("pods", "p")
        cluster.api.fault(path="/api/v1/pods", hang=True, times=None)
        cluster.api.close_watches()
        cluster.api.remove("pods", "p")
        cluster.api.put(rig.pod("p", memory=8000))
        cluster.replica.scheduler.watched.room("a", "")
        cluster.replica.scheduler.watched.cluster.forget_pod(
            next(uid for uid in cluster.replica.scheduler.watched.cluster.pods)
        )
        assert await cluster.look_now() == ["a"]
        new = cluster.api.find("pods", "p")
        assert old is not None
        assert new is not None
        assert annotation_keys.REQUEUE not in (new["metadata"].get("annotations") or {})


async def test_each_waiting_pod_that_is_placed_lets_the_next_be_tried(times: Times) -> None:
    async with full(times, "a") as cluster:
        pods = [await cluster.wait(name, memory=4000) for name in ("p", "q")]
        cluster.api.remove("pods", "on-a")
        assert await cluster.look() == ["a"]
        assert (await cluster.replica.filter(pods[0]))["NodeNames"] == ["a"]
        times.pass_by(1)
        assert await cluster.look_now() == ["a"]
        assert (await cluster.replica.filter(pods[1]))["NodeNames"] == ["a"]
        times.pass_by(1)
        assert await cluster.look_now() == []
