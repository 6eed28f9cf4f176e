"""Pods from their start to their end."""

from __future__ import annotations

import asyncio

from hami_sandbox.kubelet.attempts import Waits
from sandbox.tests.unit.kubelet.pods import container, pod, sidecar
from sandbox.tests.unit.kubelet.rig import Node
from tests.unit.kube.following import until


async def test_a_pod_runs(node: Node) -> None:
    async with node.running():
        node.put(
            pod("p", container(command=["work", "$(MODE)"], env=[{"name": "MODE", "value": "x"}]))
        )
        await until(lambda: node.phase() == "Running")
        await until(lambda: len(node.events()) == 3)
    spec = node.runtime.latest("main").spec
    assert spec.argv == ("work", "x")
    assert spec.env == {"MODE": "x", "HOSTNAME": "p"}
    assert (spec.pod_uid, spec.namespace, spec.pod_name) == ("uid-p", "default", "p")
    assert node.state()["running"]
    assert sorted(node.events()) == [
        ("Created", "Created container: main"),
        ("Pulled", 'Container image "busybox" already present on machine'),
        ("Started", "Started container main"),
    ]


async def test_init_containers_sidecars_and_the_others_come_in_order(node: Node) -> None:
    made = pod("p", init=(container("first"), sidecar("proxy")), restartPolicy="Never")
    async with node.running():
        node.put(made)
        await until(lambda: node.runtime.running() == ("first",))
        await until(lambda: node.waits_for() == "PodInitializing")
        node.runtime.end("first")
        await until(lambda: node.runtime.running() == ("main", "proxy"))
        assert node.runtime.asked.index(("start", "proxy")) < node.runtime.asked.index(
            ("create", "main")
        )
        node.runtime.end("main")
        await until(lambda: node.phase() == "Succeeded")
        assert node.runtime.running() == ()
        # Nobody asked for its end: it stays, with its logs.
        assert node.deletions() == []
        assert node.state()["terminated"]["reason"] == "Completed"


async def test_a_container_that_crashes_again_waits(node: Node) -> None:
    node.waits = Waits(first=600)
    async with node.running():
        node.put(pod())
        await until(lambda: node.runtime.running() == ("main",))
        node.runtime.end("main", 1)
        await until(lambda: node.runtime.latest("main").spec.attempt == 1)
        await until(lambda: node.runtime.running() == ("main",))
        node.runtime.end("main", 2)
        await until(lambda: node.waits_for() == "CrashLoopBackOff")
        told = "back-off 10m0s restarting failed container=main pod=p_default(uid-p)"
        assert node.state()["waiting"]["message"] == told
        assert node.status()["containerStatuses"][0]["lastState"]["terminated"]["exitCode"] == 2
        told = "Back-off restarting failed container main in pod p_default(uid-p)"
        await until(lambda: ("BackOff", told) in node.events())
        assert node.runtime.latest("main").spec.attempt == 1


async def test_a_container_that_crashed_is_started_again_and_again(node: Node) -> None:
    async with node.running():
        node.put(pod())
        for attempt in range(4):
            await until(lambda: node.runtime.running() == ("main",))
            assert node.runtime.latest("main").spec.attempt == attempt
            node.runtime.end("main", 1)
        await until(lambda: node.runtime.running() == ("main",))
        await until(lambda: node.status()["containerStatuses"][0]["restartCount"] == 4)
        status = node.status()["containerStatuses"][0]
        assert status["lastState"]["terminated"]["exitCode"] == 1
        # The latest and the one before it; older ones are gone.
        await until(lambda: len(node.runtime.states) == 2)


async def test_a_deleted_pod_ends_with_its_grace_and_is_let_go(node: Node) -> None:
    async with node.running() as kubelet:
        node.put(pod("p", container("main"), init=(sidecar("proxy"),)))
        await until(lambda: node.phase() == "Running")
        node.delete("p", grace=7)
        await until(node.deletions)
        assert node.deletions() == [
            {
                "apiVersion": "v1",
                "kind": "DeleteOptions",
                "gracePeriodSeconds": 0,
                "preconditions": {"uid": "uid-p"},
            }
        ]
        asked = [each for each in node.runtime.asked if each[0] == "stop"]
        assert asked == [("stop", "main"), ("stop", "proxy")]
        assert 6 < node.runtime.graces["main"] <= 7
        assert node.phase() == "Failed"  # it ended by a signal
        assert kubelet.pods.active() == frozenset()
        node.release("p")
        await until(lambda: not node.runtime.states)
        assert not (node.folder / "k" / "pods" / "uid-p").exists()


async def test_a_shorter_grace_counts(node: Node) -> None:
    node.runtime.stubborn.add("main")
    async with node.running():
        node.put(pod())
        await until(lambda: node.phase() == "Running")
        node.delete("p", grace=600)
        await until(lambda: node.runtime.graces.get("main", 0) > 500)
        node.delete("p", grace=1)
        await until(node.deletions)
        assert node.runtime.graces["main"] == 1


async def test_a_pod_that_vanishes_is_ended(node: Node) -> None:
    async with node.running():
        node.put(pod())
        await until(lambda: node.phase() == "Running")
        node.api.remove("pods", "p")
        await until(lambda: not node.runtime.states)


async def test_a_pod_that_is_deleted_before_it_ran_is_let_go(node: Node) -> None:
    node.runtime.refuses_create["main"] = "no room"
    async with node.running():
        node.put(pod())
        await until(lambda: node.waits_for() == "CreateContainerError")
        node.delete("p")
        await until(node.deletions)
    assert node.phase() == "Failed"


async def test_a_pod_may_not_run_longer_than_it_says(node: Node) -> None:
    async with node.running():
        node.put(pod(activeDeadlineSeconds=0.05))
        await until(lambda: node.phase() == "Failed")
    assert node.status()["reason"] == "DeadlineExceeded"
    assert node.runtime.running() == ()


async def test_a_slow_server_holds_up_no_start(node: Node) -> None:
    gate = asyncio.Event()
    node.api.fault(method="PATCH", path="/status", gate=gate)
    async with node.running():
        for number in range(5):
            node.put(pod(f"p{number}"))
        await until(lambda: len(node.runtime.running()) == 5)
        gate.set()
        await until(lambda: all(node.phase(f"p{n}") == "Running" for n in range(5)))


async def test_statuses_reach_a_server_that_was_away(node: Node) -> None:
    node.api.fault(method="PATCH", path="/pods/", status=503, times=2)
    async with node.running():
        node.put(pod())
        await until(lambda: node.phase() == "Running")


async def test_many_pods_at_once(node: Node) -> None:
    async with node.running():
        for number in range(40):
            node.put(pod(f"p{number}"))
        await until(lambda: all(node.phase(f"p{n}") == "Running" for n in range(40)))
    # Nothing was started twice, and each status was told in few words.
    assert len(node.runtime.asked) == 80
    assert len(node.api.sent("PATCH", "/pods/")) <= 120
