"""Hostile orders of events around kept cards, offered nodes and evictions."""

from __future__ import annotations

import asyncio
import collections
import json
from typing import Any

import pytest

from hami.cluster import state
from hami.placement import decide
from hami.wire import codec
from tests.unit.scheduler import rig
from tests.unit.scheduler.conftest import Times
from tests.unit.scheduler.test_offered_nodes import cluster
from tests.unit.scheduler.test_precedence import PATIENT, URGENT, full


async def preempt(replica: rig.Replica, pod: rig.Object, asked: rig.Object) -> rig.Object:
    body = codec.encode({"Pod": pod, "NodeNameToMetaVictims": asked})
    response = await replica.scheduler.http_api.preempt(rig.request(body))
    assert isinstance(response.body, bytes)
    kept: rig.Object = json.loads(response.body)["NodeNameToMetaVictims"]
    return kept


def count_per_turn(
    monkeypatch: pytest.MonkeyPatch, owner: Any, name: str
) -> collections.Counter[int]:
    """Count the calls of a function in each turn of the event loop."""
    loop = asyncio.get_running_loop()
    calls: collections.Counter[int] = collections.Counter()
    truly = getattr(owner, name)
    turn = 0

    def next_turn() -> None:
        nonlocal turn
        turn += 1
        loop.call_soon(next_turn)

    def counting(*args: Any, **named: Any) -> Any:
        calls[turn] += 1
        return truly(*args, **named)

    monkeypatch.setattr(owner, name, counting)
    loop.call_soon(next_turn)
    return calls


# Cards that are kept.


async def test_no_cards_are_kept_for_a_pod_that_bind_has_placed(times: Times) -> None:
    """What is kept replaces a reservation: the pod's real cards would be free for another pod."""
    async with full(times, "a", "b") as there:
        urgent, patient = there.pod("urgent", URGENT), there.pod("patient", PATIENT)
        assert await there.ask(urgent) is None
        await there.ends("on-a")
        await there.ends("on-b")
        there.api.fault(path="/api/v1/pods", hang=True, times=None)
        there.api.close_watches()
        # Bound where the best score is not.
        assert await there.replica.bind(urgent, "b") == ""
        assert there.replica.used("b") == [8000]
        assert await there.ask(patient, ["b"]) is None
        times.pass_by(10)
        assert await there.ask(patient, ["b"]) is None
        assert there.replica.used("b") == [8000]


async def test_no_cards_are_kept_for_a_pod_that_is_bound_already(times: Times) -> None:
    """A bound pod stays counted, though a pod refused before it is still waiting."""
    async with full(times, "a", "b", "c") as there:
        waiting, urgent = there.pod("waiting", URGENT), there.pod("urgent", URGENT)
        patient = there.pod("patient", PATIENT)
        assert await there.ask(waiting, ["c"]) is None
        assert await there.ask(urgent) is None
        await there.ends("on-a")
        await there.ends("on-b")
        assert await there.replica.bind(urgent, "b") == ""
        await there.replica.seen()
        assert there.replica.used("b") == [8000]
        assert await there.ask(patient, ["b"]) is None
        times.pass_by(10)
        assert await there.ask(patient, ["b"]) is None
        assert there.replica.used("b") == [8000]


async def test_no_cards_are_kept_for_a_pod_that_is_deleted(times: Times) -> None:
    async with full(times, "a", "b") as there:
        waiting, urgent = there.pod("waiting", URGENT), there.pod("urgent", URGENT)
        assert await there.ask(waiting, ["b"]) is None
        assert await there.ask(urgent) is None
        there.api.remove("pods", "urgent")
        await there.ends("on-a")
        assert await there.ask(there.pod("patient", PATIENT)) == ["a"]


async def test_what_was_searched_for_groups_without_pods_is_forgotten(times: Times) -> None:
    """There is always a pod that was refused a moment ago, so nothing may wait for none."""
    async with full(times, "a") as there:
        precedence = there.replica.scheduler.precedence
        always = there.pod("always", URGENT)
        for number in range(15):
            times.pass_by(1)
            assert await there.ask(always) is None
            pod = there.pod(f"p-{number}", URGENT, memory=1000 + number)
            assert await there.ask(pod) is None
            await there.ends(f"p-{number}")
        kept = sum(len(v) for v in vars(precedence).values() if isinstance(v, dict))
        assert kept <= 10


async def test_a_more_important_pod_is_requeued_for_cards_kept_for_a_lesser_one(
    times: Times,
) -> None:
    """kube-schedulers before 1.32 retry only the pod that is changed."""
    async with cluster(times, full=("a",), minor="30") as kube:
        for name, priority in (("first", 2000), ("second", 1000), ("third", 0)):
            pod = rig.pod(name, memory=8000)
            pod["spec"]["priority"] = priority
            kube.api.put(pod)
            kube.offers[name] = ["a"]
        assert await kube.ask("first") is None
        times.pass_by(4)
        assert await kube.ask("second") is None
        kube.api.remove("pods", "on-a")
        await kube.replica.seen()
        assert await kube.ask("third") is None  # kept for the second
        assert await kube.round() == ["a", "first"]


async def test_preemption_counts_no_cards_that_are_kept_for_lesser_pods(times: Times) -> None:
    """The preemptor takes them; a veto would leave it waiting, and nothing would requeue it."""
    async with full(times, "a") as there:
        urgent, patient = there.pod("urgent", URGENT), there.pod("patient", PATIENT)
        assert await there.ask(urgent) is None
        await there.ends("on-a")
        assert await there.ask(patient) is None
        asked = {"a": {"Pods": [{"UID": "holds-only-cpu"}], "NumPDBViolations": 0}}
        most_urgent = there.pod("most-urgent", URGENT + 1)
        assert await preempt(there.replica, most_urgent, asked) == asked
        # And the cards are kept from lesser pods all the same.
        assert await preempt(there.replica, patient, asked) == {}
        assert await there.ask(patient) is None
        assert await there.ask(urgent) == ["a"]


async def test_bind_places_a_pod_again_on_cards_that_are_kept_for_a_lesser_one(
    times: Times,
) -> None:
    """A reservation that ended too early does no harm, if no pod has really taken the cards."""
    async with full(times, "a") as there:
        most_urgent, urgent = there.pod("most-urgent", URGENT + 1), there.pod("urgent", URGENT)
        patient = there.pod("patient", PATIENT)
        await there.ends("on-a")
        assert await there.ask(most_urgent) == ["a"]
        assert await there.ask(urgent) is None
        most_urgent["status"]["conditions"] = [
            {"type": "PodScheduled", "status": "False", "message": "of an earlier attempt"}
        ]
        there.api.put(most_urgent)
        await there.replica.seen()
        assert await there.ask(patient) is None  # kept for the urgent one
        assert await there.replica.bind(most_urgent, "a") == ""
        assert there.replica.used("a") == [8000]
        times.pass_by(10)
        assert await there.ask(urgent) is None
        assert there.replica.used("a") == [8000]


async def test_bind_leaves_cards_that_are_kept_for_a_more_important_pod(times: Times) -> None:
    async with full(times, "a") as there:
        urgent, patient = there.pod("urgent", URGENT), there.pod("patient", PATIENT)
        assert await there.ask(urgent) is None
        await there.ends("on-a")
        assert "does not fit there now" in await there.replica.bind(patient, "a")
        assert await there.ask(urgent) == ["a"]


# Offered nodes.


async def test_a_pod_whose_nominated_node_is_its_only_one_is_requeued(times: Times) -> None:
    """kube-scheduler asks the same twice then: as a probe, and as the real question."""
    async with cluster(times, full=("a", "b")) as kube:
        pod = rig.pod("p", memory=8000)
        pod["status"]["nominatedNodeName"] = "a"
        kube.api.put(pod)
        kube.offers["p"] = ["a"]
        assert await kube.ask("p") is None
        assert await kube.ask("p") is None
        kube.api.remove("pods", "on-a")
        assert await kube.round() == ["a"]
        assert await kube.ask("p") == ["a"]


async def test_a_nominated_node_that_became_the_only_one_replaces_what_was_offered(
    times: Times,
) -> None:
    async with cluster(times, full=("a", "b")) as kube:
        pod = kube.api.put(rig.pod("p", memory=8000))
        kube.offers["p"] = ["b"]
        assert await kube.ask("p") is None
        pod["status"]["nominatedNodeName"] = "a"
        kube.api.put(pod)
        kube.offers["p"] = ["a"]
        assert await kube.ask("p") is None
        assert await kube.ask("p") is None
        kube.api.remove("pods", "on-a")
        assert await kube.round() == ["a"]


async def test_a_node_that_registers_its_first_cards_requeues_pods_it_was_not_offered_to(
    times: Times,
) -> None:
    """kube-schedulers before 1.32 do not retry such pods when the node comes, so none asks."""
    async with cluster(times, full=("a",), minor="30") as kube:
        kube.api.put(rig.pod("p", memory=8000))
        kube.offers["p"] = ["a"]
        assert await kube.ask("p") is None
        bare = rig.node("new")
        bare["metadata"]["annotations"] = {}
        kube.api.put(bare)
        assert await kube.round() == []
        kube.api.put(rig.node("new"))
        assert await kube.round() == ["new", "p"]


async def test_equal_offers_of_unlike_pods_are_kept_once(times: Times) -> None:
    """A thousand jobs on five thousand nodes would keep five million names."""
    async with cluster(times, full=("a", "b")) as kube:
        for number in range(3):
            kube.api.put(rig.pod(f"p-{number}", memory=8000 - number))
            kube.offers[f"p-{number}"] = ["a", "b"]
            assert await kube.ask(f"p-{number}") is None

        def kept() -> int:
            groups = kube.replica.scheduler.unschedulable.groups()
            assert len(groups) == 3
            return len({id(group.offered) for group in groups})

        assert kept() == 1
        kube.api.put(rig.node("c", cards=0))
        kube.api.put(rig.node("d", cards=3))
        kube.api.remove("pods", "on-b")
        await kube.round()
        assert kept() == 1


async def test_many_offers_are_not_looked_up_without_a_pause(
    times: Times, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A new node makes all kept offers stale, and each costs as much as a decision."""
    async with cluster(times, full=("a", "b")) as kube:
        for number in range(100):
            kube.api.put(rig.pod(f"p-{number}", memory=8000))
            kube.offers[f"p-{number}"] = ["a", f"other-{number}"]
            assert await kube.ask(f"p-{number}") is None
        kube.api.put(rig.node("c"))
        kube.api.remove("pods", "on-b")
        await kube.replica.seen()
        turns = count_per_turn(monkeypatch, state.Cluster, "compact")
        for _ in range(10):
            await kube.replica.scheduler.requeue.run_round()
        assert turns.total() >= 100
        assert max(turns.values()) <= 1


async def test_equal_pods_of_many_offers_cost_one_try_per_node(times: Times) -> None:
    """Pods of one job have many offers where cpu comes and goes; others wait behind them."""
    async with cluster(times, empty=("a",)) as kube:
        for number in range(2):
            await kube.replica.place(rig.pod(f"on-a-{number}", memory=4000))
        for number in range(50):
            kube.api.put(rig.pod(f"p-{number}", memory=8000))
            kube.offers[f"p-{number}"] = ["a", f"other-{number}"]
            assert await kube.ask(f"p-{number}") is None
        kube.api.put(rig.pod("small", memory=4000))
        kube.offers["small"] = ["a"]
        assert await kube.ask("small") is None
        kube.api.remove("pods", "on-a-0")
        assert await kube.round() == ["a"]


async def test_a_preemption_with_many_nodes_lets_other_requests_through(
    times: Times, monkeypatch: pytest.MonkeyPatch
) -> None:
    """kube-scheduler lists a tenth of all nodes, and each costs a decision."""
    async with full(times, "a") as there:
        turns = count_per_turn(monkeypatch, decide, "decide")
        victims = {"Pods": [], "NumPDBViolations": 0}
        asked = {f"n-{number}": victims for number in range(50)}
        assert await preempt(there.replica, there.pod("p", URGENT), asked) == {}
        # Once more after the watch has caught up.
        assert turns.total() == 2 * 50
        assert max(turns.values()) == 1
