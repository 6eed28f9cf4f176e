"""Stale and living node locks: the owner decides, not the clock."""

from __future__ import annotations

import datetime as dt

import pytest

from hami.scheduler import node_lock
from hami.wire import codec, objects

NOW = dt.datetime(2026, 11, 15, 12, 0, 0, tzinfo=dt.UTC)


def lock(age: float, owner: str = ",team,train") -> str:
    time = NOW - dt.timedelta(seconds=age)
    return time.strftime("%Y-%m-%dT%H:%M:%SZ") + owner


def pod(
    *, node: str | None = None, phase: str = "Pending", bind_phase: str = "", born: float = 600
) -> objects.Pod:
    created = NOW - dt.timedelta(seconds=born)
    annotations = {"hami.io/bind-phase": bind_phase} if bind_phase else {}
    document = {
        "metadata": {
            "namespace": "team",
            "name": "train",
            "uid": "u",
            "creationTimestamp": created.strftime("%Y-%m-%dT%H:%M:%SZ"),
            "annotations": annotations,
        },
        "spec": {"nodeName": node},
        "status": {"phase": phase},
    }
    return codec.decode(codec.encode(document), objects.Pod, what="pod")


CASES: dict[str, tuple[str, objects.Pod | None, float, bool]] = {
    # name: (lock, its owner, seconds we know the lock, held?)
    "the owner waits for kubelet": (lock(10), pod(node="n", bind_phase="allocating"), 1, True),
    "the owner waits longer than the timeout": (
        lock(900),
        pod(node="n", bind_phase="allocating", born=1000),
        900,
        True,
    ),
    "the owner is deleted": (lock(1), None, 0, False),
    "the owner has failed": (lock(1), pod(node="n", phase="Failed"), 0, False),
    "the owner has succeeded": (lock(1), pod(node="n", phase="Succeeded"), 0, False),
    "the owner has its cards": (lock(1), pod(node="n", bind_phase="success"), 0, False),
    "the plugin gave up on the owner": (lock(1), pod(node="n", bind_phase="failed"), 0, False),
    "the owner runs": (lock(1), pod(node="n", phase="Running"), 0, False),
    "the owner is on another node": (lock(1), pod(node="other"), 0, False),
    "the owner is not bound yet": (lock(1), pod(), 0, True),
    "the owner is not bound, and the lock's clock is behind": (lock(900), pod(), 14, True),
    "the owner was never bound": (lock(0), pod(), 16, False),
    "the owner was never bound, and the lock's clock is ahead": (lock(-60), pod(), 16, False),
    "the owner is younger than the lock by its clock": (lock(100), pod(node="n", born=50), 0, True),
    "it has no owner, and was seen for a short time": (lock(900, ""), None, 299, True),
    "it has no owner, and was seen for a long time": (lock(0, ""), None, 301, False),
    "it is no lock, for a short time": ("what", None, 299, True),
    "it is no lock, for a long time": ("what", None, 300, False),
    "it names half a pod": (lock(1, ",team,"), None, 300, False),
}


@pytest.mark.parametrize(("value", "owner", "seen_for", "held"), CASES.values(), ids=CASES)
def test_a_lock_is_held_while(
    value: str, owner: objects.Pod | None, seen_for: float, held: bool
) -> None:
    for uid in ("", "u"):
        state = node_lock.judge(value, uid=uid, node="n", pod=owner, seen_for=seen_for, timeout=300)
        assert state.held is held
        assert state.why


@pytest.mark.parametrize("owner", [pod(), pod(node="n", bind_phase="allocating")])
def test_a_lock_with_the_uid_of_another_pod_is_stale(owner: objects.Pod) -> None:
    state = node_lock.judge(lock(1), uid="other", node="n", pod=owner, seen_for=0, timeout=300)
    assert not state.held
    assert state.why == "its pod was deleted, another has its name"


def test_the_owner_of_a_lock_is_the_pod_it_names() -> None:
    assert node_lock.lock_owner(lock(1)) == ("team", "train")
    assert node_lock.lock_owner(lock(1, "")) is None
    assert node_lock.lock_owner("nonsense") is None
