"""A pod that was just refused does not lose its place to a less important one."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from typing import Any

import pytest

from hami.placement import decide
from tests.scripted_api.server import ScriptedApi
from tests.unit.scheduler import rig
from tests.unit.scheduler.conftest import Times

URGENT, PATIENT = 1000, 0


class Cluster:
    def __init__(self, api: ScriptedApi, replica: rig.Replica) -> None:
        self.api = api
        self.replica = replica

    def pod(self, name: str, priority: int, memory: int = 8000) -> rig.Object:
        pod = rig.pod(name, memory=memory)
        pod["spec"]["priority"] = priority
        return self.api.put(pod)

    async def ask(self, pod: rig.Object, nodes: list[str] | None = None) -> list[str] | None:
        answer = await self.replica.filter(pod, nodes)
        assert not answer["Error"], answer
        found: list[str] | None = answer["NodeNames"]
        return found

    async def ends(self, name: str) -> None:
        """Let a pod end, and our watch see it."""
        self.api.remove("pods", name)
        await self.replica.seen()


@contextlib.asynccontextmanager
async def full(times: Times, *names: str, **settings: Any) -> AsyncIterator[Cluster]:
    """Run a replica with nodes whose one card is held by a pod `on-<name>` each."""
    async with ScriptedApi() as api:
        for name in names:
            api.put(rig.node(name))
        async with rig.running(api, clock=times.clock, now=times.now, **settings) as replica:
            cluster = Cluster(api, replica)
            for name in names:
                pod = cluster.pod(f"on-{name}", PATIENT)
                assert await cluster.ask(pod, [name]) == [name]
                assert await replica.bind(pod, name) == ""
            await replica.seen()
            yield cluster


async def test_the_room_is_kept_for_the_pod_that_was_asked_about_too_early(times: Times) -> None:
    async with full(times, "a") as cluster:
        urgent, patient = cluster.pod("urgent", URGENT), cluster.pod("patient", PATIENT)
        # kube-scheduler has seen the end of on-a, our watch has not.
        assert await cluster.ask(urgent) is None
        await cluster.ends("on-a")
        assert await cluster.ask(patient) is None
        times.pass_by(2)
        assert await cluster.ask(patient) is None
        assert await cluster.ask(urgent) == ["a"]


async def test_the_refused_pod_learns_why_and_is_requeued_when_the_room_is_free(
    times: Times,
) -> None:
    async with full(times, "a") as cluster:
        urgent, patient = cluster.pod("urgent", URGENT), cluster.pod("patient", PATIENT)
        assert await cluster.ask(urgent) is None
        await cluster.ends("on-a")
        assert await cluster.ask(patient) is None
        cluster.api.remove("pods", "urgent")
        await cluster.replica.seen()
        await cluster.replica.scheduler.requeue.run_round()
        assert cluster.replica.scheduler.requeue.sent == 1
        assert await cluster.ask(patient) == ["a"]


async def test_after_a_few_seconds_the_room_is_free_for_all(times: Times) -> None:
    async with full(times, "a") as cluster:
        urgent, patient = cluster.pod("urgent", URGENT), cluster.pod("patient", PATIENT)
        assert await cluster.ask(urgent) is None
        await cluster.ends("on-a")
        assert await cluster.ask(patient) is None
        times.pass_by(3)
        assert await cluster.ask(patient) == ["a"]
        assert await cluster.ask(urgent) is None


@pytest.mark.parametrize("priority", [URGENT, URGENT + 1])
async def test_pods_that_are_as_important_take_the_room(times: Times, priority: int) -> None:
    async with full(times, "a") as cluster:
        urgent, patient = cluster.pod("urgent", URGENT), cluster.pod("patient", PATIENT)
        other = cluster.pod("other", priority)
        assert await cluster.ask(urgent) is None
        await cluster.ends("on-a")
        assert await cluster.ask(patient) is None  # from now on the cards are kept
        assert await cluster.ask(other) == ["a"]
        assert cluster.replica.used("a") == [8000]
        assert await cluster.ask(urgent) is None


async def test_room_that_the_urgent_pod_is_not_offered_is_not_kept(times: Times) -> None:
    async with full(times, "a", "b") as cluster:
        urgent, patient = cluster.pod("urgent", URGENT), cluster.pod("patient", PATIENT)
        assert await cluster.ask(urgent, ["a"]) is None
        await cluster.ends("on-b")
        assert await cluster.ask(patient) == ["b"]


async def test_no_more_is_kept_than_the_urgent_pods_need(times: Times) -> None:
    async with full(times, "a", "b", "c") as cluster:
        urgent = [cluster.pod(f"urgent-{n}", URGENT) for n in range(2)]
        patient = [cluster.pod(f"patient-{n}", PATIENT) for n in range(2)]
        for pod in urgent:
            assert await cluster.ask(pod) is None
        for name in ("on-a", "on-b", "on-c"):
            await cluster.ends(name)
        placed = [await cluster.ask(pod) for pod in patient]
        assert sorted(map(bool, placed)) == [False, True]
        for pod in urgent:
            assert await cluster.ask(pod) is not None


async def test_a_kept_place_is_not_given_up_once_its_pod_is_bound_without_a_filter(
    times: Times,
) -> None:
    """/bind may place a pod by itself, and what it holds then must outlast what was kept."""
    async with full(times, "a") as cluster:
        urgent, patient = cluster.pod("urgent", URGENT), cluster.pod("patient", PATIENT)
        assert await cluster.ask(urgent) is None
        await cluster.ends("on-a")
        assert await cluster.ask(patient) is None
        cluster.api.fault(path="/api/v1/pods", hang=True, times=None)
        cluster.api.close_watches()
        assert await cluster.replica.bind(urgent, "a") == ""
        times.pass_by(10)
        assert await cluster.ask(patient) is None
        assert cluster.replica.used("a") == [8000]


async def test_a_replica_that_stops_leading_keeps_nothing(
    times: Times, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with full(times, "a") as cluster:
        urgent, patient = cluster.pod("urgent", URGENT), cluster.pod("patient", PATIENT)
        assert await cluster.ask(urgent) is None
        await cluster.ends("on-a")
        assert await cluster.ask(patient) is None
        assert cluster.replica.used("a") == [8000]
        monkeypatch.setattr(cluster.replica.scheduler.leadership, "_until", 0.0)
        cluster.replica.scheduler.leadership.tick()
        assert cluster.replica.used("a") == [0]


async def test_many_urgent_pods_of_one_job_cost_one_search_without_room(
    times: Times, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with full(times, "a", "b") as cluster:
        for number in range(50):
            assert await cluster.ask(cluster.pod(f"urgent-{number}", URGENT), ["a"]) is None
        searched = []
        truly = decide.decide

        def noting(where: Any, pod: Any, names: Any = None) -> Any:
            if pod.name.startswith("urgent"):
                searched.append(pod.name)
            return truly(where, pod, names)

        monkeypatch.setattr(decide, "decide", noting)
        await cluster.ends("on-b")
        patient = cluster.pod("patient", PATIENT)
        assert await cluster.ask(patient) == ["b"]
        assert len(searched) == 1
