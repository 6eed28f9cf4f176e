"""The leader evicts pods that their nodes have marked, each once, and never early."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from hami.scheduler import evictions
from hami.wire import annotation_keys, pod_marks
from hami.wire.pod_marks import Overuse, Refusal
from tests.scripted_api.server import Lost, Recorded, ScriptedApi
from tests.unit.scheduler import rig
from tests.unit.scheduler.conftest import Times
from tests.unit.scheduler.test_failover import Election
from tests.unit.scheduler.test_metrics import scrape

GRACE = 60.0
RENEWED_EVERY = 20.0
CARD = "GPU-1"
MIB = 2**20
EVICT: dict[str, Any] = {"overuse": "evict", "overuse_grace": GRACE, "evict_refused": True}

_seen = itertools.count()


def pod(name: str, uid: str = "", *, namespace: str = "default") -> rig.Object:
    """Make a running pod that asks for no card."""
    made = rig.pod(name, gpu=0, namespace=namespace, uid=uid or f"uid-{name}")
    made["spec"] |= {"nodeName": "a", "containers": [{"name": "main"}]}
    made["status"] = {"phase": "Running"}
    return made


def overuse(name: str, **fields: Any) -> str:
    values: dict[str, Any] = {
        "uid": f"uid-{name}",
        "node": "a",
        "container": "main",
        "card": CARD,
        "used": 8719 * MIB,
        "limit": 4096 * MIB,
        "since": "2026-01-01T00:00:00Z",
        "seen": f"2026-01-01T00:00:{next(_seen)}Z",
    }
    return pod_marks.encode(Overuse(**(values | fields)))


def refusal(uid: str, seen: str = "t") -> str:
    return pod_marks.encode(Refusal(uid=uid, node="a", reason="not signed", seen=seen))


class Recording:
    """Calls back at the first request."""

    def __init__(self, call: Callable[[], object]) -> None:
        self._call = call
        self.called = False

    def __call__(self, _: Recorded) -> bool:
        if not self.called:
            self.called = True
            self._call()
        return False


class Cluster:
    """A replica with clocks that stand still, and nodes that mark its pods."""

    def __init__(
        self, api: ScriptedApi, replica: rig.Replica, times: Times, *others: rig.Replica
    ) -> None:
        self.api = api
        self.replica = replica
        self.replicas = (replica, *others)
        self.times = times

    async def mark(self, *names: str, **fields: Any) -> None:
        for name in names:
            if self.api.find("pods", name) is not None:
                self.annotate(name, annotation_keys.OVERUSE, overuse(name, **fields))
        await self.seen()

    async def seen(self) -> None:
        """Wait until every replica has seen the pods as they are."""
        version = self.api.store.version
        for replica in self.replicas:
            watched = replica.scheduler.watched.pods
            await asyncio.wait_for(watched.wait_version(version), rig.PATIENCE_S)

    def annotate(self, name: str, key: str, value: str | None) -> None:
        found = self.api.find("pods", name)
        assert found is not None
        annotations = found["metadata"].setdefault("annotations", {})
        annotations.pop(key, None)
        if value is not None:
            annotations[key] = value
        self.api.put(found)

    async def overused(self, *names: str, seconds: float = GRACE, **fields: Any) -> None:
        """Mark pods, and renew that for so many seconds."""
        await self.mark(*names, **fields)
        for _ in range(int(seconds // RENEWED_EVERY)):
            self.times.pass_by(RENEWED_EVERY)
            await self.mark(*names, **fields)

    async def round(self) -> None:
        await self.replica.scheduler.evictions.run_round()

    def at_read(self, name: str, call: Callable[[], object]) -> Recording:
        """Call back when the leader reads a pod, before it is answered."""
        recording = Recording(call)
        self.api.fault(method="GET", path=f"/pods/{name}", when=recording)
        return recording

    def evicted(self) -> list[str]:
        """Return the pods for which an eviction was sent."""
        return [sent.path.split("/")[-2] for sent in self.api.sent("POST", "/eviction")]

    async def messages(self, reason: str) -> list[str]:
        self.replica.scheduler.recorder.flush()
        await rig.eventually(lambda: not self.replica.scheduler.recorder._queue)
        return [e["message"] for e in self.api.objects("events") if e["reason"] == reason]


@contextlib.asynccontextmanager
async def running(times: Times, *names: str, **settings: Any) -> AsyncIterator[Cluster]:
    async with ScriptedApi() as api:
        api.put(rig.node("a"))
        for name in names:
            api.put(pod(name))
        async with rig.running(
            api, clock=times.clock, now=times.now, seen=False, **(EVICT | settings)
        ) as replica:
            yield Cluster(api, replica, times)


async def test_a_pod_marked_for_the_whole_grace_is_evicted_and_its_owner_learns_why(
    times: Times,
) -> None:
    async with running(times, "p", "honest") as cluster:
        await cluster.overused("p", seconds=GRACE - RENEWED_EVERY)
        await cluster.round()
        assert cluster.evicted() == []
        times.pass_by(RENEWED_EVERY)
        await cluster.mark("p")
        await cluster.round()
        assert cluster.evicted() == ["p"]
        (sent,) = cluster.api.sent("POST", "/eviction")
        body = json.loads(sent.body)
        assert (body["apiVersion"], body["kind"]) == ("policy/v1", "Eviction")
        assert body["deleteOptions"]["preconditions"]["uid"] == "uid-p"
        await rig.eventually(lambda: bool(cluster.api.objects("events")))
        (message,) = await cluster.messages("GPUPodEvicted")
        for part in ("8719 MiB of card GPU-1 on a in container main", "its limit is 4096 MiB"):
            assert part in message
        assert "Ask for more memory" in message
        found = await scrape(cluster.replica)
        outcome = {"reason": "overuse", "outcome": "evicted"}
        assert found.value("hami_scheduler_evictions_total", outcome) == 1


async def test_without_evict_a_marked_pod_is_counted_only(times: Times) -> None:
    async with running(times, "p", overuse="report", evict_refused=False) as cluster:
        await cluster.overused("p", seconds=2 * GRACE)
        cluster.annotate("p", annotation_keys.START_REFUSED, refusal("uid-p"))
        await cluster.seen()
        await cluster.round()
        assert (await scrape(cluster.replica)).value("hami_scheduler_overusing_pods") == 1
        assert cluster.evicted() == []
        cluster.annotate("p", annotation_keys.OVERUSE, None)
        await cluster.seen()
        assert (await scrape(cluster.replica)).value("hami_scheduler_overusing_pods") == 0


async def test_pods_of_exempt_namespaces_stay(times: Times) -> None:
    async with running(times, "p", overuse_exempt_namespaces="kube-system,default") as cluster:
        await cluster.overused("p", seconds=2 * GRACE)
        await cluster.round()
        assert cluster.evicted() == []


async def test_a_mark_that_is_not_renewed_evicts_no_pod(times: Times) -> None:
    """The monitor has stopped: nothing shows that the pod still uses too much."""
    async with running(times, "p", "late") as cluster:
        await cluster.mark("p")
        times.pass_by(10 * GRACE)
        await cluster.round()
        assert cluster.evicted() == []
        # Renewed for long enough, but not any more when it could be evicted.
        await cluster.overused("late")
        times.pass_by(evictions.FRESH_S + 1)
        await cluster.round()
        assert cluster.evicted() == []
        await cluster.mark("late")
        await cluster.round()
        assert cluster.evicted() == ["late"]


async def test_a_silence_of_the_monitor_counts_only_in_part(times: Times) -> None:
    async with running(times, "p", overuse_grace=600.0) as cluster:
        await cluster.mark("p")
        times.pass_by(599)
        await cluster.mark("p")
        times.pass_by(RENEWED_EVERY)
        await cluster.mark("p")
        await cluster.round()
        assert cluster.evicted() == []


async def test_dropping_below_the_limit_for_a_moment_does_not_begin_again(times: Times) -> None:
    async with running(times, "p", "q") as cluster:
        await cluster.overused("p", "q", seconds=GRACE - RENEWED_EVERY)
        for name in ("p", "q"):
            cluster.annotate(name, annotation_keys.OVERUSE, None)
        await cluster.seen()
        times.pass_by(10)
        await cluster.overused("p", seconds=RENEWED_EVERY, since="later")
        await cluster.round()
        assert cluster.evicted() == ["p"]
        times.pass_by(GRACE)
        await cluster.round()
        await cluster.overused("q", seconds=GRACE - RENEWED_EVERY, since="much later")
        await cluster.round()
        assert cluster.evicted() == ["p"]


async def test_a_relist_is_no_renewal(times: Times) -> None:
    async with running(times, "p") as cluster:
        await cluster.mark("p")
        for _ in range(4):
            times.pass_by(RENEWED_EVERY)
            cluster.annotate("p", "other", str(times.seconds))
            cluster.api.compact()
            cluster.api.close_watches()
            cluster.replica.scheduler.watched.pods.resync()
            await cluster.seen()
        await cluster.round()
        assert cluster.evicted() == []


async def test_a_mark_removed_while_the_eviction_is_under_way_stops_it(times: Times) -> None:
    async with running(times, "p") as cluster:
        await cluster.overused("p")
        gate = asyncio.Event()
        cluster.api.fault(method="POST", path="/eviction", gate=gate, times=1)
        evicting = asyncio.create_task(cluster.round())
        await rig.eventually(lambda: bool(cluster.evicted()))
        cluster.annotate("p", annotation_keys.OVERUSE, None)
        gate.set()
        await evicting
        times.pass_by(5)
        await cluster.seen()
        await cluster.round()
        assert cluster.api.find("pods", "p") is not None
        assert await cluster.messages("GPUPodEvicted") == []


@pytest.mark.parametrize("now", [None, "another time"])
async def test_a_mark_that_only_the_watch_still_shows_evicts_no_pod(
    times: Times, now: str | None
) -> None:
    async with running(times, "p", evict_refused=False) as cluster:
        cluster.annotate("p", annotation_keys.START_REFUSED, refusal("uid-p"))
        await cluster.overused("p")
        value = None if now is None else overuse("p", since=now)
        cluster.at_read("p", lambda: cluster.annotate("p", annotation_keys.OVERUSE, value))
        await cluster.round()
        assert cluster.evicted() == []


async def test_a_pod_that_took_the_name_of_a_marked_one_stays(times: Times) -> None:
    async with running(times, "p") as cluster:
        await cluster.overused("p")

        def replace() -> None:
            cluster.api.remove("pods", "p")
            cluster.api.put(pod("p", "uid-new"))
            # As a copy of the pod's annotations would have it.
            cluster.annotate("p", annotation_keys.OVERUSE, overuse("p"))

        cluster.at_read("p", replace)
        for _ in range(5):
            await cluster.round()
            times.pass_by(RENEWED_EVERY)
            await cluster.mark("p")
        assert cluster.evicted() == []
        found = cluster.api.find("pods", "p")
        assert found is not None
        assert found["metadata"]["uid"] == "uid-new"


async def test_a_pod_replaced_between_read_and_eviction_stays(times: Times) -> None:
    async with running(times, "p") as cluster:
        await cluster.overused("p")
        gate = asyncio.Event()
        cluster.api.fault(method="POST", path="/eviction", gate=gate, times=1)
        evicting = asyncio.create_task(cluster.round())
        await rig.eventually(lambda: bool(cluster.evicted()))
        cluster.api.remove("pods", "p")
        cluster.api.put(pod("p", "uid-new"))
        gate.set()
        await evicting
        assert cluster.api.find("pods", "p") is not None
        assert await cluster.messages("GPUPodEvicted") == []


@pytest.mark.parametrize("fields", [{"uid": "uid-other"}, {"node": "b"}])
async def test_a_mark_for_another_pod_or_node_says_nothing(
    times: Times, fields: dict[str, Any]
) -> None:
    async with running(times, "p") as cluster:
        await cluster.overused("p", **fields)
        await cluster.round()
        assert (await scrape(cluster.replica)).value("hami_scheduler_overusing_pods") == 0
        assert cluster.evicted() == []


@pytest.mark.parametrize(
    "garbage", ["", "{}", "evict me", "null", "[" * 2000, '{"uid":"uid-p","used":-1}', "x" * 10**5]
)
async def test_garbage_is_ignored_with_a_warning(
    times: Times, garbage: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with running(times, "p") as cluster:
        for number in range(3):
            cluster.annotate("p", annotation_keys.OVERUSE, garbage)
            cluster.annotate("p", annotation_keys.START_REFUSED, garbage)
            cluster.annotate("p", "other", str(number))
            await cluster.seen()
            times.pass_by(RENEWED_EVERY)
            await cluster.round()
        assert cluster.evicted() == []
        (warning,) = [r for r in caplog.records if "cannot read a mark" in r.getMessage()]
        assert len(str(warning.__dict__["problem"])) < 300


async def test_a_budget_that_forbids_it_is_reported_and_asked_again(times: Times) -> None:
    async with running(times, "p", "other") as cluster:
        cluster.api.fault(
            method="POST",
            path="/pods/p/eviction",
            status=429,
            reason="TooManyRequests",
            message="Cannot evict pod as it would violate the pod's disruption budget.",
            retry_after=10,
            times=1,
        )
        await cluster.overused("p", "other")
        await cluster.round()
        assert cluster.evicted() == ["p", "other"]  # one does not wait for the other
        await rig.eventually(lambda: len(cluster.api.objects("events")) == 2)
        (message,) = await cluster.messages("GPUPodEvictionBlocked")
        assert "disruption budget" in message
        times.pass_by(5)
        await cluster.round()
        assert cluster.evicted() == ["p", "other"]
        times.pass_by(15)
        await cluster.mark("p")
        await cluster.round()
        assert cluster.evicted() == ["p", "other", "p"]
        assert cluster.api.find("pods", "p") is None
        found = await scrape(cluster.replica)
        outcome = {"reason": "overuse", "outcome": "blocked"}
        assert found.value("hami_scheduler_evictions_total", outcome) == 1


async def test_a_pod_that_takes_long_to_end_is_evicted_once(times: Times) -> None:
    async with running(times, "p") as cluster:
        found = cluster.api.find("pods", "p")
        assert found is not None
        found["metadata"]["finalizers"] = ["example.com/slow"]
        cluster.api.put(found)
        await cluster.overused("p")
        for _ in range(5):
            await cluster.round()
            times.pass_by(RENEWED_EVERY)
            await cluster.mark("p")
        assert cluster.evicted() == ["p"]


@pytest.mark.parametrize("slow", [False, True])
async def test_an_eviction_whose_answer_was_lost_is_reported_and_not_sent_again(
    times: Times, *, slow: bool
) -> None:
    async with running(times, "p") as cluster:
        if slow:
            found = cluster.api.find("pods", "p")
            assert found is not None
            found["metadata"]["finalizers"] = ["example.com/slow"]
            cluster.api.put(found)
        cluster.api.fault(method="POST", path="/eviction", lost=Lost.AFTER, times=1)
        await cluster.overused("p")
        for _ in range(5):
            await cluster.round()
            times.pass_by(RENEWED_EVERY)
            await cluster.seen()
        assert cluster.evicted() == ["p"]
        await rig.eventually(lambda: bool(cluster.api.objects("events")))
        assert len(await cluster.messages("GPUPodEvicted")) == 1


async def test_an_eviction_that_never_arrived_is_sent_again(times: Times) -> None:
    async with running(times, "p") as cluster:
        cluster.api.fault(method="POST", path="/eviction", lost=Lost.BEFORE, times=1)
        await cluster.overused("p")
        await cluster.round()
        assert cluster.api.find("pods", "p") is not None
        times.pass_by(RENEWED_EVERY)
        await cluster.mark("p")
        await cluster.round()
        assert cluster.api.find("pods", "p") is None


async def test_a_replica_that_does_not_lead_evicts_no_pod(times: Times) -> None:
    async with ScriptedApi() as api:
        api.put(rig.node("a"))
        api.put(pod("p"))
        election = Election(api, times)
        async with (
            election.replica("sched-1", **EVICT) as one,
            election.replica("sched-2", **EVICT) as two,
        ):
            await election.elect("sched-1")
            await one.scheduler.readiness.require(rig.PATIENCE_S)
            cluster = Cluster(api, one, times, two)
            await cluster.overused("p")
            await two.scheduler.evictions.run_round()
            assert cluster.evicted() == []
            # The old leader loses the lease between its read and its eviction.
            await election.elect("sched-1")
            await one.scheduler.readiness.require(rig.PATIENCE_S)
            lost = cluster.at_read("p", lambda: times.pass_by(10))
            await one.scheduler.evictions.run_round()
            assert lost.called
            assert cluster.evicted() == []
            # The next one has seen the mark for as long, and goes on.
            await election.elect("sched-2")
            await two.scheduler.readiness.require(rig.PATIENCE_S)
            await two.scheduler.evictions.run_round()
            assert cluster.evicted() == ["p"]
            assert api.find("pods", "p") is None


async def test_a_replica_that_starts_begins_to_count(times: Times) -> None:
    async with ScriptedApi() as api:
        api.put(rig.node("a"))
        api.put(pod("p"))
        async with rig.running(api, clock=times.clock, now=times.now, **EVICT) as replica:
            await Cluster(api, replica, times).overused("p", seconds=GRACE - RENEWED_EVERY)
        times.pass_by(RENEWED_EVERY)
        async with rig.running(api, clock=times.clock, now=times.now, **EVICT) as replica:
            cluster = Cluster(api, replica, times)
            await cluster.overused("p", seconds=GRACE - RENEWED_EVERY)
            await cluster.round()
            assert cluster.evicted() == []
            times.pass_by(RENEWED_EVERY)
            await cluster.mark("p")
            await cluster.round()
            assert cluster.evicted() == ["p"]


async def test_a_thousand_marked_pods_are_evicted_at_a_rate(
    times: Times, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(evictions, "FRESH_S", 1e6)
    names = [f"p{number}" for number in range(1000)]
    async with running(times, *names) as cluster:
        await cluster.overused(*names)
        await cluster.round()
        assert len(cluster.evicted()) == evictions.BURST
        await cluster.round()
        assert len(cluster.evicted()) == evictions.BURST
        for _ in range(20):
            times.pass_by(1)
            await cluster.round()
        assert len(cluster.evicted()) == evictions.BURST + 20
        assert len(set(cluster.evicted())) == evictions.BURST + 20


async def test_a_static_pod_stays(times: Times) -> None:
    async with running(times, "p") as cluster:
        cluster.annotate("p", annotation_keys.MIRROR, "hash")
        await cluster.overused("p")
        await cluster.round()
        assert cluster.evicted() == []


async def test_a_refused_pod_is_evicted_unless_it_runs_by_now(times: Times) -> None:
    async with running(times, "p", "runs") as cluster:
        for name, state in (("p", "waiting"), ("runs", "running")):
            found = cluster.api.find("pods", name)
            assert found is not None
            found["status"]["containerStatuses"] = [{"name": "main", "state": {state: {}}}]
            cluster.api.put(found)
            cluster.annotate(name, annotation_keys.START_REFUSED, refusal(f"uid-{name}"))
        await cluster.seen()
        await cluster.round()
        assert cluster.evicted() == ["p"]
        await rig.eventually(lambda: bool(cluster.api.objects("events")))
        (message,) = await cluster.messages("GPUPodEvicted")
        assert "was refused again and again by the agent on a: not signed" in message
