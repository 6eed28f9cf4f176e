"""Orders of events in a whole replica: none gives one card to two pods.

The lists, watches and answers of a replica overtake each other here; leases are lost and gained
again while a request waits; etcd is restored from a backup.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from hami.kube import informer
from hami.scheduler import assumed_pods, readiness
from hami.scheduler.assumed_pods import Stage
from tests.scripted_api.server import Fault, Kind, Lost, Recorded, ScriptedApi
from tests.unit.scheduler import rig
from tests.unit.scheduler.conftest import Times
from tests.unit.scheduler.test_failover import Election


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(readiness, "CATCH_UP_S", 0.05)
    monkeypatch.setattr(informer, "_CATCH_UP", 0.05)


def bound(api: ScriptedApi) -> list[str]:
    """Return the names of the pods that have a node."""
    return [p["metadata"]["name"] for p in api.objects("pods") if p["spec"].get("nodeName")]


def break_pod_watch(api: ScriptedApi) -> rig.Object:
    """End the pod watch by an error; a list follows."""
    api.stream_fault(Kind.ERROR, path="/pods", at=1)
    return api.put(rig.pod("breaks-the-watch", memory=10))


def hold_pod_watches(api: ScriptedApi, gate: asyncio.Event) -> Fault:
    """Hold the next pod watch: it would repair in a moment what the list did."""
    return api.fault(path="/pods", when=lambda r: r.watches, gate=gate)


async def blind(api: ScriptedApi, host: str, gate: asyncio.Event) -> None:
    """End a replica's pod watch; neither watch nor list shows it any pod until the gate opens."""

    def asks_for_pods(request: Recorded) -> bool:
        return request.path == "/api/v1/pods" and host in request.headers["User-Agent"]

    held = api.fault(method="GET", when=asks_for_pods, gate=gate, times=None)
    api.close_watches()
    await rig.eventually(lambda: bool(held.hits))


async def lose_and_gain(election: Election, times: Times, two: rig.Replica, **other: Any) -> None:
    """Let sched-2 lead and place a pod; then sched-1 leads again."""
    times.pass_by(20)
    await election.elect("sched-2")
    await two.scheduler.readiness.require(rig.PATIENCE_S)
    assert await two.place(rig.pod("other", **other)) == "a"
    times.pass_by(20)
    await election.elect("sched-1")


# Lists and answers that overtake each other.


async def test_a_pod_that_was_bound_while_a_list_was_on_its_way_keeps_its_card() -> None:
    async with ScriptedApi() as api:
        api.refuse_watch_list()
        api.put(rig.node("a"))
        async with rig.running(api) as replica:
            api.put(rig.pod("first", memory=10))
            await replica.seen()
            page, watch = asyncio.Event(), asyncio.Event()
            listed = api.fault(
                path="/pods", when=lambda r: "limit" in r.query and not r.watches, gate_after=page
            )
            break_pod_watch(api)
            await rig.eventually(lambda: bool(listed.hits))
            next_watch = hold_pod_watches(api, watch)
            api.fault(method="POST", path="/binding", lost=Lost.AFTER)
            assert await replica.place(rig.pod("late", memory=7000)) == "a"
            assert replica.used("a") == [7000]
            page.set()
            await rig.eventually(lambda: bool(next_watch.hits))
            assert replica.used("a") == [7000]
            other = await replica.filter(api.put(rig.pod("other", memory=7000)))
            assert not other["NodeNames"]
            watch.set()


async def test_pods_that_were_bound_while_a_watch_list_was_sent_keep_their_cards() -> None:
    async with ScriptedApi() as api:
        api.put(rig.node("a", cards=2))
        async with rig.running(api) as replica:
            one = api.put(rig.pod("one", memory=7000))
            await replica.seen()
            start, watch = asyncio.Event(), asyncio.Event()
            lines: list[rig.Object] = []
            relist = api.fault(
                path="/pods", when=lambda r: "sendInitialEvents" in r.query, gate=start, lines=lines
            )
            trigger = break_pod_watch(api)
            await rig.eventually(lambda: bool(relist.hits))
            next_watch = hold_pod_watches(api, watch)
            api.fault(method="POST", path="/binding", lost=Lost.AFTER, times=2)
            assert (await replica.filter(one))["NodeNames"] == ["a"]
            assert not await replica.bind(one, "a")
            # The list as it was when it was asked for, the changes since, and its end.
            end = {
                "resourceVersion": str(api.store.version),
                "annotations": {"k8s.io/initial-events-end": "true"},
            }
            lines += [
                {"type": "ADDED", "object": one},
                {"type": "ADDED", "object": trigger},
                {"type": "MODIFIED", "object": api.find("pods", "one")},
                {"type": "BOOKMARK", "object": {"kind": "Pod", "metadata": end}},
            ]
            assert await replica.place(rig.pod("two", memory=7000)) == "a"
            start.set()
            await rig.eventually(lambda: bool(next_watch.hits))
            assert replica.used("a") == [7000, 7000]
            other = await replica.filter(api.put(rig.pod("other", memory=7000)))
            assert not other["NodeNames"]
            watch.set()


async def test_a_pod_with_the_name_of_one_whose_bind_answer_was_lost_gets_cards_of_its_own() -> (
    None
):
    async with ScriptedApi() as api:
        api.put(rig.node("a"))
        async with rig.running(api) as replica:
            pod = api.put(rig.pod("p", memory=7000))
            assert (await replica.filter(pod))["NodeNames"] == ["a"]
            gate = asyncio.Event()
            post = api.fault(method="POST", path="/binding", gate=gate, lost=Lost.BEFORE)
            bind = asyncio.create_task(replica.bind(pod, "a"))
            await rig.eventually(lambda: bool(post.hits))
            api.remove("pods", "p")
            successor = api.put(rig.pod("p", memory=7000))
            gate.set()
            assert await bind
            await replica.seen()
            assert replica.used("a") == [0]
            assert (await replica.filter(successor))["NodeNames"] == ["a"]
            assert not await replica.bind(successor, "a")
            await replica.seen()
            assert replica.used("a") == [7000]


async def test_a_resync_that_shows_a_bind_whose_answer_was_lost_counts_its_card_once() -> None:
    async with ScriptedApi() as api:
        api.put(rig.node("a"))
        async with rig.running(api) as replica:
            pods = replica.scheduler.watched.pods
            pod = api.put(rig.pod("p", memory=7000))
            await replica.seen()
            assert (await replica.filter(pod))["NodeNames"] == ["a"]
            read = asyncio.Event()
            api.fault(method="POST", path="/binding", lost=Lost.AFTER)
            api.fault(method="GET", path="/pods/p", gate=read)
            swallowed = api.stream_fault(Kind.DROP, path="/pods", at=1)
            bind = asyncio.create_task(replica.bind(pod, "a"))
            await rig.eventually(lambda: swallowed.hits > 0)
            pods.resync()
            await rig.eventually(lambda: pods.stats.repaired > 0)
            assert replica.used("a") == [7000]
            read.set()
            assert not await bind
            other = await replica.filter(api.put(rig.pod("other", memory=7000)))
            assert not other["NodeNames"]
            assert replica.used("a") == [7000]


# A lease that is lost and gained again while a request waits.


async def test_a_bind_that_read_its_pod_in_an_earlier_term_is_refused(times: Times) -> None:
    async with ScriptedApi() as api:
        api.put(rig.node("a"))
        election = Election(api, times)
        async with election.replica("sched-1") as one, election.replica("sched-2") as two:
            await election.elect("sched-1")
            await one.scheduler.readiness.require(rig.PATIENCE_S)
            pod = api.put(rig.pod("p", memory=7000))
            slow, stalled = asyncio.Event(), asyncio.Event()
            read = api.fault(method="GET", path="/pods/p", gate_after=slow)
            bind = asyncio.create_task(one.bind(pod, "a"))
            await rig.eventually(lambda: bool(read.hits))
            await blind(api, "sched-1", stalled)
            await lose_and_gain(election, times, two, memory=7000)
            assert not one.scheduler.readiness.ready
            slow.set()
            assert await bind
            assert bound(api) == ["other"]
            stalled.set()


async def test_a_filter_that_waited_while_the_lease_was_lost_and_gained_is_refused(
    times: Times,
) -> None:
    async with ScriptedApi() as api:
        api.put(rig.node("a", late=False))
        election = Election(api, times)
        async with (
            election.replica("sched-1", filter_budget=rig.PATIENCE_S) as one,
            election.replica("sched-2") as two,
        ):
            await election.elect("sched-1")
            await one.scheduler.readiness.require(rig.PATIENCE_S)
            pod = api.put(rig.pod("p", memory=7000))
            await one.seen()
            assert (await one.filter(pod))["NodeNames"] == ["a"]
            held, stalled = asyncio.Event(), asyncio.Event()
            lock = api.fault(method="PATCH", path="/nodes/a", gate=held)
            bind = asyncio.create_task(one.bind(pod, "a"))
            await rig.eventually(lambda: bool(lock.hits))
            again = asyncio.create_task(one.filter(pod))
            await asyncio.sleep(0)
            await blind(api, "sched-1", stalled)
            await lose_and_gain(election, times, two, memory=7000)
            assert not again.done()
            held.set()
            assert await bind
            answer = await again
            assert not answer["NodeNames"]
            assert answer["Error"]
            assert bound(api) == ["other"]
            stalled.set()


async def test_a_bind_that_leaves_the_queue_after_the_lease_was_lost_keeps_no_card(
    times: Times,
) -> None:
    async with ScriptedApi() as api:
        api.put(rig.node("a", late=False))
        election = Election(api, times)
        async with election.replica("sched-1") as one:
            await election.elect("sched-1")
            await one.scheduler.readiness.require(rig.PATIENCE_S)
            first, pod = api.put(rig.pod("first")), api.put(rig.pod("p", memory=6000))
            await one.seen()
            gate = asyncio.Event()
            lock = api.fault(method="PATCH", path="/nodes/a", gate=gate)
            await one.filter(first)
            first_bind = asyncio.create_task(one.bind(first, "a"))
            await rig.eventually(lambda: bool(lock.hits))
            await one.filter(pod)
            bind = asyncio.create_task(one.bind(pod, "a"))
            await asyncio.sleep(0)
            assumed = one.scheduler.assumed_pods.get(pod["metadata"]["uid"])
            assert assumed is not None
            assert assumed.stage is Stage.BINDING
            times.pass_by(20)
            await election.elect("sched-2")
            bind.cancel()
            await asyncio.gather(bind, return_exceptions=True)
            gate.set()
            await asyncio.gather(first_bind, return_exceptions=True)
            assert list(one.scheduler.assumed_pods) == []
            assert one.used("a") == [0]


# A restore of etcd.


async def test_a_bind_answer_that_is_lost_after_a_restore_is_asked_for_once_and_then_resynced(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("ASK_AGAIN_S", "ASK_AT_MOST_S"):
        monkeypatch.setattr(assumed_pods, name, 1e6)
    async with ScriptedApi() as api:
        api.put(rig.node("a"))
        backup = api.snapshot()
        for number in range(20):
            api.put(rig.pod(f"fill-{number}"))
        async with rig.running(api) as replica:
            api.restore(backup)
            pod = api.put(rig.pod("p"))
            assert (await replica.filter(pod))["NodeNames"] == ["a"]
            api.fault(method="POST", path="/binding", lost=Lost.AFTER)
            bind = asyncio.create_task(replica.bind(pod, "a"))
            uid = pod["metadata"]["uid"]
            await rig.eventually(lambda: uid in replica.scheduler.watched.pods)
            assert replica.scheduler.assumed_pods.get(uid) is None
            assert len(api.sent("GET", "/pods/p")) == 1
            assert replica.used("a") == [1000]
            bind.cancel()


async def test_a_pod_that_a_restore_has_unbound_is_placed_again() -> None:
    async with ScriptedApi() as api:
        api.put(rig.node("a"))
        pod = api.put(rig.pod("p"))
        backup = api.snapshot()
        async with rig.running(api) as replica:
            pods = replica.scheduler.watched.pods
            assert (await replica.filter(pod))["NodeNames"] == ["a"]
            assert not await replica.bind(pod, "a")
            for number in range(5):
                api.put(rig.pod(f"fill-{number}", memory=1))
            await replica.seen()
            api.restore(backup)
            pods.resync()
            await rig.eventually(lambda: pods.epoch == 1)
            assert replica.used("a") == [0]
            answer = await replica.filter(pod)
            assert answer["NodeNames"] == ["a"], answer["Error"]


async def test_a_node_is_locked_again_after_a_restore() -> None:
    async with ScriptedApi() as api:
        api.put(rig.node("a", late=False))
        backup = api.snapshot()
        for number in range(10):
            api.put(rig.node("a", late=False, x=str(number)))
        async with rig.running(api) as replica:
            api.restore(backup)
            api.put(rig.node("a", late=False, x="restored"))
            pod = api.put(rig.pod("p"))
            assert (await replica.filter(pod))["NodeNames"] == ["a"]
            assert "node a changed" in await replica.bind(pod, "a")
            await rig.eventually(lambda: replica.scheduler.watched.nodes.epoch == 1)
            assert await replica.bind(pod, "a") == ""


async def test_a_leader_gets_ready_although_a_restore_took_back_the_version_it_waits_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("CATCH_UP_AT_MOST_S", "RETRY_S"):
        monkeypatch.setattr(readiness, name, 0.01)
    async with ScriptedApi() as api:
        api.put(rig.node("a"))
        api.bookmarks = False  # the pod watch shows no other versions than those of pods
        backup = api.snapshot()
        answer = asyncio.Event()
        asked = api.fault(
            path="/pods",
            when=lambda r: r.query.get("limit") == "1",
            gate_after=answer,
            on_hit=lambda: api.put(rig.node("a", x="later")),
        )
        async with rig.running(api, ready=False) as replica:
            await rig.eventually(lambda: bool(asked.hits))
            assert replica.scheduler.watched.pods.version < api.store.version
            api.restore(backup)
            answer.set()
            await replica.scheduler.readiness.require(rig.PATIENCE_S)
            assert replica.scheduler.watched.pods.version == api.store.version
