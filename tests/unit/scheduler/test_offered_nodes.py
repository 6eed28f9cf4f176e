"""Unschedulable pods are requeued only for nodes that kube-scheduler offers them.

A small model of kube-scheduler asks again when it would: at a changed node, at a changed pod, and
every five minutes. Clocks stand still but for the test.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from typing import Any

import pytest

from hami.wire import annotation_keys
from tests.scripted_api.server import ScriptedApi
from tests.unit.scheduler import rig
from tests.unit.scheduler.conftest import Times

FLUSH_S = 300
TAINTS = [{"key": "old", "value": "1", "effect": "NoSchedule"}]


class KubeScheduler:
    """kube-scheduler's queue, for pods that may use some of the nodes only."""

    def __init__(self, api: ScriptedApi, replica: rig.Replica) -> None:
        self.api = api
        self.replica = replica
        #: Pod name -> the nodes that pass kube-scheduler's own filters.
        self.offers: dict[str, list[str]] = {}
        self.filtered: list[str] = []

    async def ask(self, name: str) -> list[str] | None:
        pod = self.api.find("pods", name)
        assert pod is not None
        self.filtered.append(name)
        answer = await self.replica.filter(pod, self.offers[name])
        assert not answer["Error"], answer
        nodes: list[str] | None = answer["NodeNames"]
        return nodes

    async def round(self) -> list[str]:
        """Make a round of requeueing; returns what it changed, nodes before pods."""
        await self.replica.seen()
        begin = len(self.changes())
        await self.replica.scheduler.requeue.run_round()
        return self.changes()[begin:]

    def changes(self) -> list[str]:
        key = annotation_keys.REQUEUE.encode()
        sent = [r for r in self.api.sent("PATCH", "/api/v1/") if key in r.body]
        return [request.path.rsplit("/", 1)[1] for request in sent]


@contextlib.asynccontextmanager
async def cluster(
    times: Times, *, full: tuple[str, ...] = (), empty: tuple[str, ...] = (), minor: str = "36"
) -> AsyncIterator[KubeScheduler]:
    async with ScriptedApi() as api:
        api.minor = minor
        for name in (*full, *empty):
            api.put(rig.node(name))
        async with rig.running(api, clock=times.clock, now=times.now) as replica:
            for name in full:
                pod = api.put(rig.pod(f"on-{name}", memory=8000))
                assert (await replica.filter(pod, [name]))["NodeNames"] == [name]
                assert await replica.bind(pod, name) == ""
            await rig.eventually(lambda: replica.scheduler.kube_version.minor is not None)
            await replica.seen()
            yield KubeScheduler(api, replica)


def labelled(name: str, labels: dict[str, str], **spec: Any) -> rig.Object:
    node = rig.node(name)
    node["metadata"]["labels"] = labels
    node["spec"] = spec
    return node


async def test_ten_pods_that_wait_for_full_nodes_leave_an_idle_cluster_alone(
    times: Times,
) -> None:
    async with cluster(times, full=("a", "b"), empty=("free-1", "free-2")) as kube:
        names = [f"p-{number}" for number in range(10)]
        for number, name in enumerate(names):
            kube.api.put(rig.pod(name, memory=1000 + number))
            kube.offers[name] = ["a", "b"]
            assert await kube.ask(name) is None
        for second in range(1, 12 * 60 + 1):
            times.pass_by(1)
            for changed in await kube.round():
                # A node's change makes kube-scheduler ask about every pod.
                for name in [changed] if changed in names else names:
                    await kube.ask(name)
            if second % FLUSH_S == 0:
                for name in names:
                    await kube.ask(name)
        assert len(kube.changes()) <= 12
        assert len(kube.filtered) <= 60


async def test_room_on_a_node_that_is_not_offered_requeues_no_pod(times: Times) -> None:
    async with cluster(times, full=("a", "b")) as kube:
        kube.api.put(rig.pod("p", memory=8000))
        kube.offers["p"] = ["a"]
        assert await kube.ask("p") is None
        kube.api.remove("pods", "on-b")
        assert await kube.round() == []
        kube.api.remove("pods", "on-a")
        assert await kube.round() == ["a"]


async def test_of_two_pods_the_one_that_is_offered_the_node_is_changed(times: Times) -> None:
    async with cluster(times, full=("a", "b"), minor="30") as kube:
        for name, nodes in (("for-a", ["a"]), ("for-b", ["b"])):
            kube.api.put(rig.pod(name, memory=8000))
            kube.offers[name] = nodes
            assert await kube.ask(name) is None
        kube.api.remove("pods", "on-b")
        assert await kube.round() == ["b", "for-b"]


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(labelled("b", {"zone": "x"}), id="a label"),
        pytest.param(labelled("b", {"zone": "y"}, taints=[]), id="a taint that goes"),
        pytest.param(
            labelled("b", {"zone": "y"}, taints=[{"key": "k", "effect": "NoSchedule"}]),
            id="another taint",
        ),
        pytest.param(
            labelled("b", {"zone": "y"}, taints=TAINTS, unschedulable=False), id="uncordoned"
        ),
    ],
)
async def test_a_node_that_may_have_become_eligible_requeues_the_pod_within_two_seconds(
    times: Times, change: rig.Object
) -> None:
    async with cluster(times, full=("a",)) as kube:
        kube.api.put(labelled("b", {"zone": "y"}, taints=TAINTS, unschedulable=True))
        await kube.replica.seen()
        kube.api.put(rig.pod("p", memory=8000))
        kube.offers["p"] = ["a"]
        assert await kube.ask("p") is None
        assert await kube.round() == []
        kube.api.put(change)
        times.pass_by(2)
        assert await kube.round() == ["b"]
        kube.offers["p"] = ["a", "b"]
        assert await kube.ask("p") == ["b"]


async def test_a_node_that_stays_ineligible_is_changed_once_for_each_of_its_own_changes(
    times: Times,
) -> None:
    async with cluster(times, full=("a",), empty=("b",)) as kube:
        kube.api.put(rig.pod("p", memory=8000))
        kube.offers["p"] = ["a"]
        assert await kube.ask("p") is None
        for zone in ("x", "y"):
            kube.api.put(labelled("b", {"zone": zone}))
            assert await kube.round() == ["b"]
            assert await kube.ask("p") is None
            for _ in range(60):
                times.pass_by(1)
                assert await kube.round() == []


async def test_a_heartbeat_of_a_node_is_no_change(times: Times) -> None:
    async with cluster(times, full=("a",), empty=("b",)) as kube:
        kube.api.put(rig.pod("p", memory=8000))
        kube.offers["p"] = ["a"]
        assert await kube.ask("p") is None
        node = kube.api.find("nodes", "b")
        assert node is not None
        node["status"]["conditions"] = [{"type": "Ready", "status": "True"}]
        kube.api.put(node)
        assert await kube.round() == []


async def test_a_new_node_without_cards_requeues_no_pod_until_it_registers(times: Times) -> None:
    async with cluster(times, full=("a",)) as kube:
        kube.api.put(rig.pod("p", memory=8000))
        kube.offers["p"] = ["a"]
        assert await kube.ask("p") is None
        kube.api.put({"kind": "Node", "metadata": {"name": "new"}})
        assert await kube.round() == []
        # kube-scheduler has heard of the node, too.
        kube.offers["p"] = ["a", "new"]
        assert await kube.ask("p") is None
        kube.api.put(rig.node("new"))
        assert await kube.round() == ["new"]
        assert await kube.ask("p") == ["new"]


async def test_a_pod_that_another_resource_keeps_away_is_not_requeued_at_each_free_card(
    times: Times,
) -> None:
    async with cluster(times, empty=("a",)) as kube:
        for number in range(8):
            await kube.replica.place(rig.pod(f"small-{number}", memory=1000))
        kube.api.put(rig.pod("p", memory=1000))
        kube.offers["p"] = ["a"]
        assert await kube.ask("p") is None
        kube.api.remove("pods", "small-0")
        assert await kube.round() == ["a"]
        # It has no cpu there: kube-scheduler does not ask. More free cards say nothing new.
        changed = []
        for number in range(1, 8):
            times.pass_by(2)
            kube.api.remove("pods", f"small-{number}")
            changed += await kube.round()
        assert changed == ["a", "p"]  # the one doubt whether the event was seen


async def test_the_interval_goes_on_growing_while_nothing_of_the_pods_concern_changes(
    times: Times,
) -> None:
    async with cluster(times, full=("a",)) as kube:
        kube.api.put(rig.pod("p", memory=8000))
        kube.offers["p"] = ["a"]
        assert await kube.ask("p") is None
        (waiting,) = kube.replica.scheduler.unschedulable
        tries = []
        for _ in range(600):
            times.pass_by(1)
            assert await kube.round() == []
            if int(times.seconds) % 100 == 0:
                assert await kube.ask("p") is None
                tries.append(waiting.group.tries)
        assert tries == sorted(tries)
        assert tries[-1] > tries[0] > 0


async def test_a_question_about_the_nominated_node_alone_is_a_probe(times: Times) -> None:
    async with cluster(times, full=("a", "b")) as kube:
        kube.api.put(rig.pod("p", memory=8000))
        kube.offers["p"] = ["a", "b"]
        assert await kube.ask("p") is None
        scheduler = kube.replica.scheduler
        (waiting,) = scheduler.unschedulable
        note, refusals = waiting.note, waiting.refusals
        pod = kube.api.find("pods", "p")
        assert pod is not None
        pod["status"]["nominatedNodeName"] = "b"
        kube.api.put(pod)
        kube.offers["p"] = ["b"]
        assert await kube.ask("p") is None
        assert (waiting.note, waiting.refusals) == (note, refusals)
        kube.api.remove("pods", "on-a")
        assert await kube.round() == ["a"]


async def test_pods_of_many_offers_share_their_names(times: Times) -> None:
    """Kept offers must not hold thousands of strings each."""
    async with cluster(times, full=("a", "b")) as kube:
        for number in range(3):
            kube.api.put(rig.pod(f"p-{number}", memory=8000))
            kube.offers[f"p-{number}"] = ["a", "b"][: number % 2 + 1]
            assert await kube.ask(f"p-{number}") is None
        known = {id(name) for name in kube.replica.scheduler.watched.cluster.nodes}
        infos = {id(i.name) for i in kube.replica.scheduler.watched.cluster.nodes.values()}
        for group in kube.replica.scheduler.unschedulable.groups():
            assert {id(name) for name in group.offered.names or ()} <= known | infos
            assert not group.offered.distinct
