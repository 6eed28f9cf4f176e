"""Two replicas, one lease: only its holder binds, and a new leader catches up."""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
from collections.abc import AsyncIterator
from typing import Any

import pytest

from hami.kube import informer
from hami.scheduler import readiness
from hami.scheduler.leadership import Leadership, Permit
from hami.wire import annotation_keys
from tests.scripted_api.server import Fault, Recorded, ScriptedApi
from tests.unit.scheduler import rig
from tests.unit.scheduler.conftest import Times
from tests.unit.serving import servers

UUID = "3f0c9d8e-5a47-4c56-9a0f-0f6d2c1b7a90"
LEASE: dict[str, Any] = {
    "leader_elect": True,
    "leader_elect_resource_name": "hami-scheduler",
    "leader_elect_resource_namespace": "kube-system",
    "leader_elect_lease_duration": 8.0,
    "leader_elect_renew_deadline": 6.0,
}


class Election:
    """kube-scheduler's part: it holds the lease and renews it when the test says so."""

    def __init__(self, api: ScriptedApi, times: Times) -> None:
        self._api = api
        self._times = times
        self._replicas: list[rig.Replica] = []

    def renew(self, host: str) -> None:
        self._times.pass_by(0.01)  # each renewal has a time of its own
        stamp = dt.datetime.fromtimestamp(self._times.wall, dt.UTC)
        self._api.put(
            {
                "kind": "Lease",
                "metadata": {"name": "hami-scheduler", "namespace": "kube-system"},
                "spec": {
                    "holderIdentity": f"{host}_{UUID}",
                    "leaseDurationSeconds": 8,
                    "renewTime": stamp.strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
                },
            }
        )

    async def seen(self) -> None:
        """Wait until every replica has seen the lease as it is."""
        version = self._api.store.version
        for replica in self._replicas:
            await asyncio.wait_for(
                replica.scheduler.informers["lease"].wait_version(version), rig.PATIENCE_S
            )

    async def elect(self, host: str) -> None:
        """Give the lease to a host; the second sight is a renewal."""
        for _ in range(2):
            self.renew(host)
            await self.seen()

    @contextlib.asynccontextmanager
    async def replica(self, host: str, **settings: Any) -> AsyncIterator[rig.Replica]:
        settings = {"filter_budget": 0.05, **LEASE, **settings}
        async with rig.running(
            self._api,
            clock=self._times.clock,
            now=self._times.now,
            ready=False,
            hostname=host,
            **settings,
        ) as replica:
            for informer in replica.scheduler.informers.values():
                await asyncio.wait_for(informer.wait_synced(), rig.PATIENCE_S)
            self._replicas.append(replica)
            try:
                yield replica
            finally:
                self._replicas.remove(replica)


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(readiness, "CATCH_UP_S", 0.05)
    monkeypatch.setattr(informer, "_CATCH_UP", 0.05)


async def readyz(replica: rig.Replica, query: str = "") -> tuple[int, str]:
    async with servers.serving(*replica.scheduler.routes()) as server:
        status, _, reported = await servers.ask(server.port, "GET", f"/readyz{query}")
        return status, reported.decode()


async def test_only_the_holder_of_the_lease_filters_and_binds(times: Times) -> None:
    async with ScriptedApi() as api:
        api.put(rig.node("a"))
        election = Election(api, times)
        async with election.replica("sched-1") as one, election.replica("sched-10") as ten:
            await election.elect("sched-1")
            await one.scheduler.readiness.require(rig.PATIENCE_S)
            pod = api.put(rig.pod("p"))
            error = f"not the leader: sched-1_{UUID} holds the lease"
            assert (await ten.filter(pod))["Error"] == error
            assert await ten.bind(pod, "a") == error
            assert api.sent("POST", "/binding") == []
            assert (await one.filter(pod))["NodeNames"] == ["a"]
            assert await one.bind(pod, "a") == ""


async def test_a_lease_that_was_only_seen_once_proves_nothing(times: Times) -> None:
    async with ScriptedApi() as api:
        api.put(rig.node("a"))
        election = Election(api, times)
        election.renew("sched-1")
        async with election.replica("sched-1") as one:
            await election.seen()
            pod = api.put(rig.pod("p"))
            assert "was not seen renewing the lease" in await one.bind(pod, "a")
            election.renew("sched-1")
            await one.scheduler.readiness.require(rig.PATIENCE_S)
            assert await one.bind(pod, "a") == ""


async def test_losing_the_lease_drops_what_was_reserved_and_refuses_the_bind(times: Times) -> None:
    async with ScriptedApi() as api:
        api.put(rig.node("a"))
        election = Election(api, times)
        async with election.replica("sched-1") as one, election.replica("sched-2") as two:
            await election.elect("sched-1")
            await one.scheduler.readiness.require(rig.PATIENCE_S)
            pod = api.put(rig.pod("p", memory=5000))
            assert (await one.filter(pod))["NodeNames"] == ["a"]
            await election.elect("sched-2")
            assert one.used("a") == [0]
            assert await one.bind(pod, "a") == f"not the leader: sched-2_{UUID} holds the lease"
            assert api.sent("POST", "/binding") == []
            await two.scheduler.readiness.require(rig.PATIENCE_S)
            other = api.put(rig.pod("q", memory=5000))
            assert (await two.filter(other))["NodeNames"] == ["a"]
            assert await two.bind(other, "a") == ""
            await one.seen()
            assert one.used("a") == [5000]


async def test_a_lease_that_is_not_renewed_in_time_is_lost_without_any_event(times: Times) -> None:
    async with ScriptedApi() as api:
        api.put(rig.node("a"))
        election = Election(api, times)
        async with election.replica("sched-1") as one:
            await election.elect("sched-1")
            await one.scheduler.readiness.require(rig.PATIENCE_S)
            pod = api.put(rig.pod("p", memory=5000))
            await one.filter(pod)
            times.pass_by(6.0)
            assert "was not seen renewing the lease for 6 s" in await one.bind(pod, "a")
            assert api.sent("POST", "/binding") == []
            one.scheduler.maintenance.run_round()
            assert one.used("a") == [0]
            status, reported = await readyz(one)
            assert status == 503
            assert "was not seen renewing the lease" in reported


async def test_a_leader_that_was_frozen_just_before_sending_sends_nothing(
    times: Times, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with ScriptedApi() as api:
        api.put(rig.node("a"))
        election = Election(api, times)
        async with election.replica("sched-1") as one:
            await election.elect("sched-1")
            await one.scheduler.readiness.require(rig.PATIENCE_S)
            pod = api.put(rig.pod("p", memory=5000))
            await one.filter(pod)
            permit = Leadership.permit

            def freeze_after(leadership: Leadership, term: int) -> Permit:
                permitted = permit(leadership, term)
                times.pass_by(20)
                return permitted

            monkeypatch.setattr(Leadership, "permit", freeze_after)
            assert "not the leader" in await one.bind(pod, "a")
            assert api.sent("POST", "/binding") == []
            assert one.used("a") == [0]


@pytest.mark.parametrize("comes_back", [False, True], ids=["is lost", "goes and comes back"])
async def test_a_bind_that_waits_for_a_lock_while_the_lease_changes_sends_nothing(
    times: Times, comes_back: bool
) -> None:
    async with ScriptedApi() as api:
        api.put(rig.node("a", late=False))
        election = Election(api, times)
        async with election.replica("sched-1") as one, election.replica("sched-2"):
            await election.elect("sched-1")
            await one.scheduler.readiness.require(rig.PATIENCE_S)
            await one.place(rig.pod("first"))
            pod = api.put(rig.pod("p"))
            await one.filter(pod)
            bind = asyncio.create_task(one.bind(pod, "a"))
            await asyncio.sleep(0)
            await election.elect("sched-2")
            if comes_back:
                await election.elect("sched-1")
                await one.scheduler.readiness.require(rig.PATIENCE_S)
            node = api.find("nodes", "a")
            assert node is not None
            del node["metadata"]["annotations"][annotation_keys.NODE_LOCK]
            api.put(node)
            error = await asyncio.wait_for(bind, rig.PATIENCE_S)
            assert "not the leader" in error or (comes_back and "lost and gained again" in error)
            assert api.sent("POST", "/p/binding") == []
            node = api.find("nodes", "a")
            assert node is not None
            assert annotation_keys.NODE_LOCK not in node["metadata"]["annotations"]
            assert one.used("a") == [1000]


def deafen(api: ScriptedApi, host: str, **fault: Any) -> tuple[Fault, Fault]:
    """Let a replica list its pods, but hear of no change; lists after the first are `fault`ed."""

    def watches(request: Recorded) -> bool:
        return request.headers["User-Agent"] == host and request.watches

    def lists(request: Recorded) -> bool:
        mine = request.headers["User-Agent"] == host and not request.watches
        return mine and request.query.get("limit") != "1"

    first = api.fault(path="/api/v1/pods", when=lists, times=1)
    held = api.fault(path="/api/v1/pods", when=lists, times=None, **fault)
    api.fault(
        path="/api/v1/pods",
        when=lambda r: watches(r) and "sendInitialEvents" in r.query,
        status=400,
        reason="BadRequest",
        times=None,
    )
    api.fault(path="/api/v1/pods", when=watches, hang=True, times=None)
    return first, held


@pytest.mark.parametrize("has_pod", [True, False], ids=["by its pod", "by a list"])
async def test_a_new_leader_hands_out_no_card_before_it_has_seen_the_old_ones_binds(
    times: Times, has_pod: bool
) -> None:
    async with ScriptedApi() as api:
        api.put(rig.node("a"))
        names = {"pod_name": "sched-2", "pod_namespace": "kube-system"} if has_pod else {}
        if has_pod:
            api.put(scheduler_pod("sched-2"))
        election = Election(api, times)
        gate = asyncio.Event()
        deafen(api, "sched-2", gate=gate)
        async with election.replica("sched-1") as one, election.replica("sched-2", **names) as two:
            await election.elect("sched-1")
            await one.scheduler.readiness.require(rig.PATIENCE_S)
            await one.place(rig.pod("bound", memory=5000))
            await election.elect("sched-2")
            await rig.eventually(lambda: two.scheduler.leadership.leading)
            # It leads, and its cache does not know of the card that is taken.
            assert two.used("a") == [0]
            pod = api.put(rig.pod("p", memory=5000))
            catching_up = "the caches are catching up with the leader before us"
            assert (await two.filter(pod))["Error"] == catching_up
            assert await two.bind(pod, "a") == catching_up
            status, reported = await readyz(two)
            assert (status, catching_up in reported) == (503, True)
            gate.set()
            await two.scheduler.readiness.require(rig.PATIENCE_S)
            assert (await two.filter(pod))["FailedAndUnresolvableNodes"] == {
                "a": "1/1 CardInsufficientMemory"
            }
            assert len(api.sent("POST", "/binding")) == 1


async def test_each_term_has_its_own_barrier(times: Times) -> None:
    async with ScriptedApi() as api:
        api.put(rig.node("a"))
        election = Election(api, times)
        async with election.replica("sched-1") as one, election.replica("sched-2") as two:
            for host in ("sched-1", "sched-2", "sched-1"):
                await election.elect(host)
                await {"sched-1": one, "sched-2": two}[host].scheduler.readiness.require(
                    rig.PATIENCE_S
                )
            failing = api.fault(
                method="GET", path="/api/v1/pods", status=500, times=None, when=_asks_version
            )
            await election.elect("sched-2")
            await rig.eventually(lambda: failing.hits > 0)
            assert two.scheduler.leadership.leading
            assert not two.scheduler.readiness.ready
            api.faults.remove(failing)
            await two.scheduler.readiness.require(rig.PATIENCE_S)


def _asks_version(request: Recorded) -> bool:
    return request.query.get("limit") == "1"


def scheduler_pod(name: str) -> rig.Object:
    labels = {annotation_keys.COMPONENT_LABEL: readiness.COMPONENT}
    return {
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "kube-system", "labels": labels},
        "spec": {"containers": [{"name": "hami"}]},
    }


def role(api: ScriptedApi, name: str) -> str:
    pod = api.find("pods", name, "kube-system")
    assert pod is not None
    return str(pod["metadata"]["labels"].get(annotation_keys.ROLE_LABEL, ""))


def named(host: str) -> dict[str, str]:
    return {"pod_name": host, "pod_namespace": "kube-system"}


async def test_the_role_label_follows_the_lease(times: Times) -> None:
    async with ScriptedApi() as api:
        for name in ("sched-1", "sched-2", "sched-3"):
            api.put(scheduler_pod(name))
        foreign = scheduler_pod("unrelated")
        del foreign["metadata"]["labels"][annotation_keys.COMPONENT_LABEL]
        api.put(foreign)
        election = Election(api, times)
        async with (
            election.replica("sched-1", **named("sched-1")) as one,
            election.replica("sched-2", **named("sched-2")) as two,
        ):
            await election.elect("sched-1")
            await one.scheduler.readiness.require(rig.PATIENCE_S)
            await rig.eventually(
                lambda: (
                    [role(api, f"sched-{n}") for n in (1, 2, 3)]
                    == ["leader", "follower", "follower"]
                )
            )
            await election.elect("sched-2")
            await two.scheduler.readiness.require(rig.PATIENCE_S)
            await rig.eventually(
                lambda: (
                    [role(api, f"sched-{n}") for n in (1, 2, 3)]
                    == ["follower", "leader", "follower"]
                )
            )
            assert role(api, "unrelated") == ""


async def test_who_starts_beside_a_leader_is_called_a_follower(times: Times) -> None:
    async with ScriptedApi() as api:
        api.put(scheduler_pod("sched-2"))
        election = Election(api, times)
        await election.elect("sched-1")
        async with election.replica("sched-2", **named("sched-2")):
            await rig.eventually(lambda: role(api, "sched-2") == "follower")


async def test_a_replica_that_ends_meanwhile_keeps_no_other_from_its_label(times: Times) -> None:
    async with ScriptedApi() as api:
        for name in ("sched-1", "sched-2", "sched-3"):
            api.put(scheduler_pod(name))
        deleted = api.fault(method="PATCH", path="/pods/sched-2", status=404, times=None)
        election = Election(api, times)
        async with election.replica("sched-1", **named("sched-1")):
            await election.elect("sched-1")
            await rig.eventually(lambda: role(api, "sched-3") == "follower")
        assert deleted.hits


async def test_a_pod_that_cannot_be_labelled_leads_all_the_same(times: Times) -> None:
    async with ScriptedApi() as api:
        api.put(rig.node("a"))
        election = Election(api, times)
        async with election.replica("sched-1", **named("nobody")) as one:
            await election.elect("sched-1")
            await one.scheduler.readiness.require(rig.PATIENCE_S)
            assert await one.place(rig.pod("p")) == "a"


async def test_a_late_demotion_does_not_stick_to_the_leader(times: Times) -> None:
    async with ScriptedApi() as api:
        api.put(scheduler_pod("sched-1"))
        election = Election(api, times)
        async with election.replica("sched-1", **named("sched-1")) as one:
            await election.elect("sched-1")
            await one.scheduler.readiness.require(rig.PATIENCE_S)
            await rig.eventually(lambda: role(api, "sched-1") == "leader")
            gate = asyncio.Event()
            slow = api.fault(
                method="PATCH",
                path="/pods/sched-1",
                when=lambda r: readiness.FOLLOWER.encode() in r.body,
                gate=gate,
            )
            await election.elect("sched-2")
            await rig.eventually(lambda: slow.hits == 1)
            await election.elect("sched-1")
            await one.scheduler.readiness.require(rig.PATIENCE_S)
            gate.set()
            await rig.eventually(lambda: len(api.sent("PATCH", "/pods/sched-1")) >= 4)
            await rig.eventually(lambda: role(api, "sched-1") == "leader")


async def test_an_answer_about_scheduler_pods_that_cannot_be_read_ends_nothing(
    times: Times,
) -> None:
    async with ScriptedApi() as api:
        api.put(scheduler_pod("sched-1"))
        broken = api.fault(
            path="/namespaces/kube-system/pods", method="GET", lines=[{"items": 7}], times=1
        )
        election = Election(api, times)
        async with election.replica("sched-1", **named("sched-1")) as one:
            await election.elect("sched-1")
            await rig.eventually(lambda: broken.hits == 1)
            await election.elect("sched-2")
            await rig.eventually(lambda: role(api, "sched-1") == "follower")
            assert not one.scheduler.readiness.ready


async def test_readyz_distinguishes_the_synced_leader_from_other_replicas(times: Times) -> None:
    async with ScriptedApi() as api:
        election = Election(api, times)
        async with election.replica("sched-1") as one, election.replica("sched-2") as two:
            await election.elect("sched-1")
            await one.scheduler.readiness.require(rig.PATIENCE_S)
            assert await readyz(one) == (200, "[+] caches\n[+] leader\n[+] running\nok\n")
            holder = f"not the leader: sched-1_{UUID} holds the lease"
            reported = f"[+] caches\n[-] leader: {holder}\n[+] running\nnot ready\n"
            assert await readyz(two) == (503, reported)
            assert await readyz(two, "?webhook") == (200, "[+] caches\n[+] running\nok\n")
            assert await readyz(one, "?webhook") == (200, "[+] caches\n[+] running\nok\n")


async def test_readyz_without_informers_is_ready_for_nothing() -> None:
    async with ScriptedApi() as api:
        api.fault(path="/api/v1/nodes", hang=True, times=None)
        async with rig.running(api, ready=False) as replica:
            await replica.scheduler.informers["pods"].wait_synced()
            await replica.scheduler.informers["quotas"].wait_synced()
            for query in ("", "?webhook"):
                status, reported = await readyz(replica, query)
                assert status == 503
                assert "[-] caches: the caches of nodes are not filled yet" in reported


async def test_of_two_replicas_with_a_lease_of_their_own_one_leads_and_hands_over() -> None:
    own = {**LEASE, "leader_elect_own_lease": True, "leader_elect_retry_period": 0.05}
    async with ScriptedApi() as api:
        api.put(rig.node("a"))
        async with (
            rig.running(api, ready=False, hostname="sched-1", filter_budget=0.05, **own) as one,
            rig.running(api, ready=False, hostname="sched-2", filter_budget=0.05, **own) as two,
        ):
            replicas = [one, two]
            await rig.eventually(lambda: any(r.scheduler.readiness.ready for r in replicas))
            (leader,) = [r for r in replicas if r.scheduler.readiness.ready]
            (other,) = [r for r in replicas if r is not leader]
            pod = api.put(rig.pod("p"))
            assert "not the leader" in (await other.filter(pod))["Error"]
            await leader.filter(pod)
            assert await leader.bind(pod, "a") == ""
            assert not other.scheduler.leadership.leading
            assert leader.scheduler.elector is not None
            await leader.scheduler.elector.release()
            assert not leader.scheduler.leadership.leading
            # Without the release it would take the eight seconds of the lease.
            await other.scheduler.readiness.require(rig.PATIENCE_S)
            assert not leader.scheduler.leadership.leading
            next_pod = api.put(rig.pod("q"))
            assert (await other.filter(next_pod))["NodeNames"] == ["a"]
            assert await other.bind(next_pod, "a") == ""
            assert other.used("a") == [2000]


async def test_after_a_restore_the_leader_sees_its_lease_renewed_again(times: Times) -> None:
    async with ScriptedApi(bookmark_interval=0.02) as api:
        election = Election(api, times)
        async with election.replica("sched-1") as one:
            election.renew("sched-1")
            backup = api.snapshot()
            for number in range(20):
                api.put(rig.node(f"n{number}"))
            await election.elect("sched-1")
            await one.scheduler.readiness.require(rig.PATIENCE_S)
            api.restore(backup)
            election.renew("sched-1")  # at a version that the watch has passed
            times.pass_by(LEASE["leader_elect_renew_deadline"] + 1)
            one.scheduler.leadership.tick()
            assert not one.scheduler.leadership.leading
            lease = one.scheduler.informers["lease"]
            await rig.eventually(lambda: lease.epoch == 1)
            await election.elect("sched-1")
            await one.scheduler.readiness.require(rig.PATIENCE_S)
