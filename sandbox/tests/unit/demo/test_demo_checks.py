"""Checks of examples against a cluster: met or not, and explained in words."""

from __future__ import annotations

import pytest

from hami_sandbox.demo import checks, cluster_view
from hami_sandbox.demo.checks import Check, Finding
from sandbox.tests.unit.demo.worlds import FakeWorld, grant, pod, used

_BOTH = (
    pod("a", grant("c1", 6000), labels={"app": "x"}),
    pod("b", grant("c1", 6000), labels={"app": "x"}),
)


async def look(check: Check, world: FakeWorld) -> Finding:
    return await check.look(world)


@pytest.mark.parametrize(
    ("check", "met"),
    [
        (checks.Pods(labels={"app": "x"}, number=2, distinct_cards=1), True),
        (checks.Pods(labels={"app": "x"}, number=2, cards=1, memory=6000, cores=0), True),
        (checks.Pods(labels={"app": "x"}, number=2, distinct_cards=2), False),
        (checks.Pods(labels={"app": "x"}, number=2, memory=6001), False),
        (checks.Pods(labels={"app": "x"}, number=2, cards=2), False),
        (checks.Pods(labels={"app": "x"}, number=2, cores=10), False),
        (checks.Pods(labels={"app": "x"}, number=3), False),
        (checks.Pods(labels={"app": "x"}, number=1), False),
        (checks.Pods(labels={"app": "y"}, number=1), False),
        (checks.Pods(name="a"), True),
        (checks.Pods(name="a", phase="Pending"), False),
        (checks.Pods(name="a", namespace="other"), False),
        (checks.Pods(name="a", variables={"X": "1"}), False),
        (checks.Pods(name="a", annotations={"hami.io/vgpu-devices-allocated": "c1,"}), True),
        (checks.Pods(name="a", annotations={"hami.io/vgpu-devices-allocated": "c2,"}), False),
    ],
)
async def test_pods_are_as_many_and_have_what_is_said(check: checks.Pods, met: bool) -> None:
    assert (await look(check, FakeWorld(*_BOTH))).met is met


async def test_variables_are_compared_whole() -> None:
    world = FakeWorld(pod("a", env={"CUDA_TASK_PRIORITY": "0"}))
    right = checks.Pods(name="a", variables={"CUDA_TASK_PRIORITY": "0"})
    wrong = checks.Pods(name="a", variables={"CUDA_TASK_PRIORITY": "1"})
    assert (await look(right, world)).met
    finding = await look(wrong, world)
    assert not finding.met
    assert "CUDA_TASK_PRIORITY=0" in finding.seen


async def test_a_pod_that_waits_is_told_with_its_reason() -> None:
    said = "0/3 nodes are available: 3 Insufficient memory"
    conditions = [{"type": "PodScheduled", "status": "False", "message": said}]
    world = FakeWorld(pod("a", phase="Pending", node="", status={"conditions": conditions}))
    finding = await look(checks.Pods(name="a"), world)
    assert not finding.met
    assert "0 of 1 Running, 1 Pending" in finding.seen
    assert said in finding.seen


async def test_a_failed_pod_is_told_in_kubelets_words() -> None:
    status = {"reason": "UnexpectedAdmissionError", "message": "Allocate failed"}
    finding = await look(checks.Pods(name="a"), FakeWorld(pod("a", phase="Failed", status=status)))
    assert "UnexpectedAdmissionError: Allocate failed" in finding.seen


async def test_a_container_that_cannot_start_is_told() -> None:
    waiting = {"waiting": {"reason": "CreateContainerError", "message": "no such device"}}
    status = {"containerStatuses": [{"name": "work", "state": waiting}]}
    world = FakeWorld(pod("a", phase="Pending", status=status))
    assert "no such device" in (await look(checks.Pods(name="a"), world)).seen


async def test_a_refusal_must_say_all_that_is_said() -> None:
    world = FakeWorld(refusals={"pod/a": "exceeding resource quota: 4000 MiB are left"})
    good = checks.Refused(object="pod/a", says=("quota", "4000 MiB"))
    assert (await look(good, world)).met
    half = checks.Refused(object="pod/a", says=("quota", "5000 MiB"))
    finding = await look(half, world)
    assert not finding.met
    assert "5000 MiB" in finding.seen
    other = checks.Refused(object="pod/b", says=("quota",))
    assert (await look(other, world)).seen == "pod/b was not refused"


async def test_a_log_shows_the_lines_that_matter() -> None:
    text = "took 2 GiB\ncuMemAlloc 8: CUDA_ERROR_OUT_OF_MEMORY\nholding\n"
    check = checks.Log(pod="a", says=("CUDA_ERROR_OUT_OF_MEMORY",))
    finding = await look(check, FakeWorld(logs={"default/a": text}))
    assert finding.met
    assert "cuMemAlloc 8" in finding.seen
    assert "holding" not in finding.seen
    assert not (await look(check, FakeWorld())).met


async def test_a_metric_must_be_there_and_within_bounds() -> None:
    check = checks.Metric(
        name=cluster_view.SHARE_USED, labels={"pod": "a"}, at_least=2048, at_most=6000
    )
    assert (await look(check, FakeWorld(samples=[used("a", 2048), used("b", 1)]))).met
    assert (await look(check, FakeWorld(samples=[used("a", 6000)]))).met
    for samples in ([], [used("b", 3000)], [used("a", 2047)], [used("a", 6001)]):
        assert not (await look(check, FakeWorld(samples=samples))).met
    # Every series counts, not the best one.
    assert not (await look(check, FakeWorld(samples=[used("a", 3000), used("a", 9000)]))).met


async def test_an_explanation_is_held_against_its_words() -> None:
    text = "default/a waits\nnearest:\n  gpu-a: 1000 MiB short\n"
    world = FakeWorld(explanations={"default/a": text})
    assert (await look(checks.Explained(pod="a", says=("MiB short",)), world)).met
    assert not (await look(checks.Explained(pod="a", says=("cores short",)), world)).met


def test_words_say_what_is_expected() -> None:
    check = checks.Pods(labels={"app": "x"}, number=3, cards=1, cores=50, distinct_cards=2)
    assert check.words() == (
        "3 pods app=x Running, 1 card each, 50 % of compute, on 2 cards together"
    )
    assert checks.Pods(name="a", phase="Pending").words() == "pod a Pending"


def test_a_page_of_a_monitor_becomes_samples() -> None:
    page = (
        "# HELP hami_vgpu_memory_used_bytes memory\n"
        "# TYPE hami_vgpu_memory_used_bytes gauge\n"
        'hami_vgpu_memory_used_bytes{pod="a",zone="vGPU"} 1048576\n'
    )
    [sample] = cluster_view.read("gpu-a", page)
    assert (sample.node, sample.value, sample.labels["pod"]) == ("gpu-a", 1048576.0, "a")
    assert cluster_view.select([sample], cluster_view.SHARE_USED, {"pod": "a"}) == [sample]
    assert not cluster_view.select([sample], cluster_view.SHARE_USED, {"pod": "b"})
