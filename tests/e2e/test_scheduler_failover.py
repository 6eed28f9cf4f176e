"""Two replicas, and what befalls the one that leads in the middle of a burst.

It is killed, or it stands still until the other one binds, and goes on as if nothing had happened:
the pair, its kube-scheduler alone, or its `hami` alone. Each time somebody binds again, every pod
is bound once, no card is given twice, and whoever led before binds nothing after the other has
begun. How soon somebody binds again is shown; fifteen seconds are required on a quiet machine.

A kube-scheduler that stood still goes on scheduling for up to its renew deadline after it wakes:
it is a real stale leader, and only `hami` beside it can refuse.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import threading
from collections.abc import Iterator

import pytest

from tests.e2e import pods
from tests.e2e.cluster.cluster import Cluster
from tests.e2e.install import audit, installing, nodes, placing, replica
from tests.e2e.install.audit import Entry, Mark
from tests.e2e.install.fixtures import _audited  # noqa: F401 (our grants are signed)
from tests.e2e.install.installing import PORT, Install
from tests.e2e.install.replica import HAMI, KUBE_SCHEDULER, PAIR, Replica
from tests.kubeapi.client import Client, wait_for
from tests.kubeapi.paths import nodes as nodes_path
from tests.kubeapi.paths import pods as pods_path

NODES = 100
# Exactly as many as there is room for: a place that is lost, or kept by a ghost, is missed.
PODS = 200
SHARE = nodes.limits(1, memory=4000, cores=50)
BEFORE = 30
# So many pods wait at most to be bound; the others are created as these are bound.
AHEAD = 20
AGAIN_S = 15.0
BOUND_S = 120
STEP_S = 0.1
#: Long, so it comes early in a run of two workers.
pytestmark = pytest.mark.timeout(600)


@pytest.fixture(scope="module")
def install(cluster: Cluster) -> Iterator[Install]:
    with (
        nodes.simulated(cluster, NODES, count=2),
        installing.running(cluster, replicas=2) as install,
    ):
        yield install


@contextlib.contextmanager
def arriving(client: Client, namespace: str, mark: Mark) -> Iterator[None]:
    """Create pods as others are bound, while the block runs; at its end all are created."""
    failures: list[BaseException] = []

    def create() -> None:
        try:
            for number in range(PODS):
                await_bindings(mark, namespace, number + 1 - AHEAD)
                client.create(pods_path(namespace), placing.pod(f"pod-{number}", SHARE))
        except BaseException as error:  # noqa: BLE001 (the root of a thread: told below)
            failures.append(error)

    thread = threading.Thread(target=create, name="burst")
    thread.start()
    try:
        yield
    finally:
        thread.join()
    assert not failures, failures


def await_bindings(mark: Mark, namespace: str, count: int) -> None:
    wait_for(f"{count} bindings", lambda: len(mark.bindings(namespace)) >= count, BOUND_S, STEP_S)


def first_after(mark: Mark, namespace: str, struck: float, *, by: Replica | None = None) -> Entry:
    """Wait for the first pod that is bound after the leader was struck, by this one or by anyone.

    A bind that kube-scheduler asked for before it was struck is carried out by its `hami`.
    """

    def found() -> Entry | None:
        for entry in mark.bindings(namespace):
            ours = by is None or entry.address == by.address
            if ours and entry.good and entry.received > struck:
                return entry
        return None

    return wait_for("somebody to bind again", found, BOUND_S, STEP_S)


def require_all_well(install: Install, mark: Mark, namespace: str) -> list[Replica]:
    """Wait for all pods; check that each is bound once, and give who bound, in order."""
    placing.await_bound(install.client, namespace, BOUND_S)
    await_bindings(mark, namespace, PODS)
    good = [entry for entry in mark.bindings(namespace) if entry.good]
    assert sorted(entry.name for entry in good) == sorted(f"pod-{n}" for n in range(PODS))
    assert placing.overbooked(install.client) == []
    who = [install.at(entry.address) for entry in good]
    assert None not in who
    return [one for one, _ in itertools.groupby(who) if one is not None]


def clear(install: Install, namespace: str) -> None:
    """Empty the cluster and wait until both replicas are well again, for the next case."""
    install.client.delete(pods_path(namespace))
    pods.await_gone(install.client, namespace)
    install.await_ready()


STRUCK = pytest.mark.parametrize(
    "programs",
    [PAIR, (KUBE_SCHEDULER,), (HAMI,)],
    ids=["the pair", "kube-scheduler alone", "hami alone"],
)


@STRUCK
def test_a_killed_leader_is_followed(
    namespace: str, install: Install, programs: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    leader = install.await_ready()
    mark = audit.mark(install.cluster)
    with arriving(install.client, namespace, mark):
        await_bindings(mark, namespace, BEFORE)
        for program in programs:
            leader.kill(program)
        struck = replica.now()
        again = first_after(mark, namespace, struck)
    who = require_all_well(install, mark, namespace)
    seconds = again.received - struck
    say(
        capsys,
        f"killed {' and '.join(programs)} of {leader.name}: bound after {seconds:.1f} s "
        f"(required: {AGAIN_S:g} s)",
    )
    require_no_stale(leader, install, who)
    clear(install, namespace)


@STRUCK
def test_a_leader_that_stood_still_is_followed_and_binds_nothing_more(
    namespace: str, install: Install, programs: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    leader = install.await_ready()
    mark = audit.mark(install.cluster)
    with contextlib.ExitStack() as stack:
        if KUBE_SCHEDULER in programs:  # else the probe would kill what is to wake up again
            stack.enter_context(leader.unprobed(*programs))
        stack.enter_context(arriving(install.client, namespace, mark))
        await_bindings(mark, namespace, BEFORE)
        with leader.stopped(*programs):
            struck = replica.now()
            follows = install.other(leader) if KUBE_SCHEDULER in programs else None
            again = first_after(mark, namespace, struck, by=follows)
        told = leader.log_size(HAMI)
        if KUBE_SCHEDULER in programs:  # the other leads now, and pods still come
            require_refused(leader, install)
    refused = sum("not the leader" in line for line in leader.logs(HAMI, told))
    who = require_all_well(install, mark, namespace)
    seconds = again.received - struck
    say(
        capsys,
        f"stopped {' and '.join(programs)} of {leader.name}: bound after {seconds:.1f} s "
        f"(required: {AGAIN_S:g} s); {refused} lines about refused requests after it woke",
    )
    require_no_stale(leader, install, who)
    clear(install, namespace)


def require_refused(stale: Replica, install: Install) -> None:
    """Ask `hami` of a replica that leads no more, as the kube-scheduler beside it would."""
    body = placing.pod("stale", SHARE)
    body["metadata"] |= {"namespace": "default", "uid": "stale"}
    names = [node["metadata"]["name"] for node in install.client.get(nodes_path())["items"]]
    asked = json.dumps({"Pod": body, "NodeNames": names}).encode()
    answer = stale.http("/filter", PORT, method="POST", body=asked, timeout=BOUND_S)
    assert "not the leader" in json.loads(answer.body)["Error"], answer


def require_no_stale(leader: Replica, install: Install, who: list[Replica]) -> None:
    """Check that nobody bound after the other had begun to; who lost its lease lost it for good."""
    other = install.other(leader)
    names = [one.name for one in who]
    # Its own kube-scheduler, started again or alive all the time, may hold the next lease as well.
    assert names in ([leader.name], [leader.name, other.name])


def say(capsys: pytest.CaptureFixture[str], line: str) -> None:
    with capsys.disabled():
        print(f"\n{line}")  # noqa: T201 (the figure that is required)
