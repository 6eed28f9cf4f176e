"""Pods that kubelet rejected: counted, explained once, removed if replaced."""

from __future__ import annotations

import contextlib
import pathlib
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest

from hami.cluster.state import Cluster as State
from hami.scheduler import rejected_pods, rejections
from hami.wire import codec, objects
from tests import builders
from tests.builders import GPU
from tests.scripted_api.server import ScriptedApi
from tests.unit.scheduler import rig
from tests.unit.scheduler.conftest import Times
from tests.unit.scheduler.test_grants import ALLOCATED, annotate
from tests.unit.scheduler.test_metrics import scrape

METRIC = "hami_scheduler_rejected_pods"
REMOVED = "hami_scheduler_removed_rejected_pods_total"
KILLED = (
    "Pod was rejected: Allocate failed due to no healthy devices present; cannot allocate "
    f"unhealthy devices {GPU}, which is unexpected"
)
REFUSED = (
    "Pod was rejected: Allocate failed due to rpc error: code = FailedPrecondition desc = hami: "
    "the card is full, which is unexpected"
)
BROKEN = (
    "Pod was rejected: Allocate failed due to rpc error: code = Unavailable desc = error reading "
    "from server: EOF, which is unexpected"
)
DCU = "hygon.com/dcunum"
BEFORE, AT, AFTER = (f"2026-01-01T00:00:0{second}Z" for second in range(3))


@pytest.fixture
def keys(tmp_path: pathlib.Path) -> pathlib.Path:
    (tmp_path / "current").write_bytes(b"k" * 32)
    return tmp_path


def pod(
    name: str, *, owner: str = "web", kind: str = "ReplicaSet", created: str = AT
) -> rig.Object:
    """Make a pod of a controller, or of none."""
    made = rig.pod(name, uid=f"uid-{name}", creationTimestamp=created)
    if owner:
        made["metadata"]["ownerReferences"] = [
            {"kind": "Other", "name": "x", "uid": "uid-x"},
            {"kind": kind, "name": owner, "uid": f"uid-{owner}", "controller": True},
        ]
    return made


class Cluster:
    """A scheduler, and a kubelet that rejects its pods."""

    def __init__(self, api: ScriptedApi, replica: rig.Replica, times: Times) -> None:
        self.api = api
        self.replica = replica
        self.times = times

    async def rejected(self, made: rig.Object, message: str = KILLED, **status: Any) -> None:
        """Place a pod; kubelet rejects it."""
        await self.replica.place(made)
        found = self.api.find("pods", made["metadata"]["name"])
        assert found is not None
        failed = {"reason": "UnexpectedAdmissionError", "message": message, "startTime": AT}
        self.api.put({**found, "status": {"phase": "Failed", **failed, **status}})
        await self.replica.seen()

    async def round(self, seconds: float = rejected_pods.SETTLED_S) -> None:
        self.times.pass_by(seconds)
        await self.replica.scheduler.rejected.run_round()

    async def messages(self) -> dict[str, str]:
        """Return the explanations, by pod."""
        recorder = self.replica.scheduler.recorder
        sent = recorder.stats.sent + recorder.stats.failed + len(recorder._queue)
        await rig.eventually(lambda: recorder.stats.sent + recorder.stats.failed >= sent)
        return explanations(self.api)

    async def counted(self, cause: str = "unanswered") -> float:
        return float((await scrape(self.replica)).value(METRIC, {"cause": cause}))

    def left(self) -> set[str]:
        return {each["metadata"]["name"] for each in self.api.objects("pods")}


def explanations(api: ScriptedApi) -> dict[str, str]:
    found = [e for e in api.objects("events") if e["reason"] == "GPUPodRejected"]
    messages = {event["involvedObject"]["name"]: event["message"] for event in found}
    assert len(messages) == len(found), "a pod has one explanation"
    return messages


@contextlib.asynccontextmanager
async def running(times: Times, keys: pathlib.Path, **settings: Any) -> AsyncIterator[Cluster]:
    async with ScriptedApi() as api:
        api.put(rig.node("a", cards=2))
        async with rig.running(
            api, keys=keys, clock=times.clock, now=times.now, **settings
        ) as replica:
            yield Cluster(api, replica, times)


async def test_each_is_counted_while_it_exists_and_explained_to_its_owner(
    times: Times, keys: pathlib.Path
) -> None:
    async with running(times, keys) as cluster:
        await cluster.rejected(pod("killed"))
        await cluster.rejected(pod("alone", owner=""))
        await cluster.rejected(pod("refused"), REFUSED)
        await cluster.round()
        assert (await cluster.counted(), await cluster.counted("refused")) == (2, 1)
        assert await cluster.messages() == {
            "killed": "kubelet on a has rejected this pod, because hami's agent there did not "
            "answer: it was killed, or kubelet or the node had just started. A rejected pod never "
            "starts; ReplicaSet web creates another one. Delete this one when you have seen it",
            "alone": "kubelet on a has rejected this pod, because hami's agent there did not "
            "answer: it was killed, or kubelet or the node had just started. A rejected pod never "
            "starts, and no controller replaces this one: delete it and create it again",
            "refused": "kubelet on a has rejected this pod, because hami's agent there refused "
            "it: the card is full. A rejected pod never starts; ReplicaSet web creates another "
            "one. Delete this one when you have seen it",
        }
        cluster.api.remove("pods", "killed")
        await cluster.replica.seen()
        assert await cluster.counted() == 1


async def test_a_scheduler_that_starts_again_explains_none_twice(
    times: Times, keys: pathlib.Path
) -> None:
    async with running(times, keys) as cluster:
        await cluster.rejected(pod("killed"))
        await cluster.round()
        assert (await cluster.messages()).keys() == {"killed"}
        async with rig.running(
            cluster.api, keys=keys, clock=times.clock, now=times.now, hostname="sched-2"
        ) as other:
            await other.scheduler.rejected.run_round()
            again = Cluster(cluster.api, other, times)
            assert (await again.messages()).keys() == {"killed"}
            assert other.scheduler.recorder.stats.failed == 0
            assert await again.counted() == 1


async def test_many_are_explained_one_by_one(times: Times, keys: pathlib.Path) -> None:
    async with running(times, keys) as cluster:
        names = [f"p{number}" for number in range(2 * rejected_pods.EXPLAINED)]
        for name in names:
            await cluster.rejected(pod(name))
        await cluster.round()
        assert len(await cluster.messages()) == rejected_pods.EXPLAINED
        await cluster.round()
        assert (await cluster.messages()).keys() == set(names)


OTHERS: dict[str, tuple[dict[str, int], str]] = {
    "cpus": ({}, "Allocate failed due to not enough cpus available, which is unexpected"),
    "another plugin's devices": ({"rdma/hca": 1}, KILLED.replace(GPU, "rdma/hca")),
    "a resource whose name begins like ours": ({f"{GPU}-x": 1}, KILLED.replace(GPU, f"{GPU}-x")),
    "a call that may be another plugin's": ({"rdma/hca": 1}, BROKEN),
}


@pytest.mark.parametrize(("resources", "message"), OTHERS.values(), ids=OTHERS)
async def test_a_pod_rejected_for_the_sake_of_others_is_not_ours(
    times: Times, keys: pathlib.Path, resources: dict[str, int], message: str
) -> None:
    async with running(times, keys, remove_rejected=True) as cluster:
        made = pod("p")
        made["spec"]["containers"][0]["resources"]["limits"] |= resources
        await cluster.rejected(made, message)
        cluster.api.put({**pod("next", created=AFTER), "status": {"phase": "Running"}})
        await cluster.round()
        await cluster.round()
        assert await cluster.counted() == 0
        assert await cluster.messages() == {}
        assert cluster.left() == {"p", "next"}


@pytest.mark.parametrize("message", [KILLED.replace(GPU, DCU), BROKEN])
def test_a_pod_that_another_vendors_plugin_did_not_serve_is_not_ours(message: str) -> None:
    """We place it, but hami's agent is not asked for it: no word about that agent would be true."""
    (hygon,) = (vendor for vendor in builders.VENDORS if vendor.resources.count == DCU)
    limited = {"name": "main", "resources": {"limits": {DCU: "1"}}}
    made = {
        "metadata": {
            "name": "p",
            "namespace": "team",
            "uid": "u",
            "annotations": {hygon.annotations.allocated: "DCU-1,DCU,1000,0:;"},
        },
        "spec": {"nodeName": "a", "containers": [limited]},
        "status": {"phase": "Failed", "reason": rejections.REASON, "message": message},
    }
    seen = codec.decode(codec.encode(made), objects.Pod, what="pod")
    state = State(builders.VENDORS)
    held, _ = state.read_pod(msgspec.structs.replace(seen, status=None))
    assert held is not None
    assert held.shares
    assert rejections.read(seen, state) is None


async def test_a_broken_call_is_ours_where_the_pod_asks_no_other_plugin(
    times: Times, keys: pathlib.Path
) -> None:
    async with running(times, keys) as cluster:
        await cluster.rejected(pod("p"), BROKEN)
        assert await cluster.counted() == 1


async def test_a_pod_whose_grant_is_not_ours_or_that_failed_otherwise_is_not_counted(
    times: Times, keys: pathlib.Path
) -> None:
    async with running(times, keys) as cluster:
        await cluster.rejected(pod("forged"))
        annotate(cluster.api, "forged", **{ALLOCATED: "GPU-1,NVIDIA,1,0:;"})
        await cluster.rejected(pod("evicted"), reason="Evicted")
        await cluster.rejected(pod("ended"), phase="Succeeded")
        assert await cluster.counted() == 0


# Removal.


def successor(name: str = "next", *, owner: str = "web", created: str = AFTER) -> rig.Object:
    return pod(name, owner=owner, created=created)


async def test_one_is_removed_once_its_controller_has_made_another(
    times: Times, keys: pathlib.Path
) -> None:
    async with running(times, keys, remove_rejected=True) as cluster:
        await cluster.rejected(pod("first"))
        await cluster.rejected(pod("second"))  # made in the place of the first
        cluster.api.put(successor("older", created=BEFORE))
        for _ in range(3):
            await cluster.round(seconds=1000)
        assert cluster.left() == {"first", "second", "older"}
        cluster.api.put(successor())
        await cluster.round(seconds=1000)
        assert cluster.left() == {"older", "next"}
        assert (await scrape(cluster.replica)).value(REMOVED, {"outcome": "removed"}) == 2
        message = (await cluster.messages())["first"]
        assert message.endswith(
            "ReplicaSet web creates another one. This one is deleted after that"
        )
        assert await cluster.counted() == 0


NOT_REPLACED = {
    "nothing": None,
    "a pod of another controller": successor(owner="api"),
    "a pod without a controller": successor(owner=""),
    "a pod that has failed": {**successor(), "status": {"phase": "Failed"}},
}


@pytest.mark.parametrize("other", NOT_REPLACED.values(), ids=NOT_REPLACED)
async def test_one_that_is_not_replaced_stays(
    times: Times, keys: pathlib.Path, other: rig.Object | None
) -> None:
    async with running(times, keys, remove_rejected=True) as cluster:
        await cluster.rejected(pod("p"))
        if other is not None:
            cluster.api.put(other)
        await cluster.round()
        await cluster.round()
        assert "p" in cluster.left()


async def test_one_without_a_controller_is_never_removed(times: Times, keys: pathlib.Path) -> None:
    async with running(times, keys, remove_rejected=True) as cluster:
        await cluster.rejected(pod("p", owner=""))
        cluster.api.put(successor(owner=""))
        for _ in range(3):
            await cluster.round(seconds=1000)
        assert cluster.left() == {"p", "next"}
        assert not cluster.api.sent("DELETE")


async def test_one_of_a_controller_that_may_not_replace_it_is_never_removed(
    times: Times, keys: pathlib.Path
) -> None:
    async with running(times, keys, remove_rejected=True) as cluster:
        await cluster.rejected(pod("worker-0", kind="PyTorchJob"))
        cluster.api.put(pod("worker-3", kind="PyTorchJob", created=AFTER))
        for _ in range(3):
            await cluster.round(seconds=1000)
        assert cluster.left() == {"worker-0", "worker-3"}
        assert "If PyTorchJob web makes no other one" in (await cluster.messages())["worker-0"]


async def test_nothing_is_removed_unless_configured(times: Times, keys: pathlib.Path) -> None:
    async with running(times, keys) as cluster:
        await cluster.rejected(pod("p"))
        cluster.api.put(successor())
        await cluster.round()
        await cluster.round()
        assert cluster.left() == {"p", "next"}


async def test_a_pod_that_took_its_name_meanwhile_stays(times: Times, keys: pathlib.Path) -> None:
    async with running(times, keys, remove_rejected=True) as cluster:
        await cluster.rejected(pod("p"))
        cluster.api.put(successor())

        def replace(_: object) -> bool:
            cluster.api.remove("pods", "p")
            cluster.api.put({**pod("p"), "metadata": {**pod("p")["metadata"], "uid": "uid-new"}})
            return False

        cluster.api.fault(method="DELETE", path="/pods/p", when=replace, times=1)
        await cluster.round()
        await cluster.round()
        found = cluster.api.find("pods", "p")
        assert found is not None
        assert found["metadata"]["uid"] == "uid-new"


async def test_a_failed_removal_is_counted_and_tried_again(
    times: Times, keys: pathlib.Path
) -> None:
    async with running(times, keys, remove_rejected=True) as cluster:
        await cluster.rejected(pod("p"))
        cluster.api.put(successor())
        cluster.api.fault(method="DELETE", path="/pods/p", status=500, times=1)
        await cluster.round()
        assert "p" in cluster.left()
        assert (await scrape(cluster.replica)).value(REMOVED, {"outcome": "failed"}) == 1
        await cluster.round(seconds=1000)
        assert cluster.left() == {"next"}
