"""The end of a cluster, in every way: nothing of it stays on the machine."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e import pods, traces
from tests.e2e.cluster import cluster as clusters
from tests.e2e.cluster import control_plane
from tests.e2e.cluster.cluster import Cluster
from tests.e2e.cluster.layout import CHECKOUT, Layout, Scheduler, nodes
from tests.e2e.cluster.machines import MachineError
from tests.kubeapi.client import wait_for

NAME = "lifecycle"
UP_S = 240
END_S = 60
COMMAND = [sys.executable, "-m", "tests.e2e.cluster"]
#: Long, so it comes early in a run of two workers.
pytestmark = pytest.mark.timeout(600)


def harness(command: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*COMMAND, command, "--name", NAME, *arguments],
        cwd=CHECKOUT,
        capture_output=True,
        text=True,
        check=False,
    )


@contextlib.contextmanager
def runner(*options: str) -> Iterator[tuple[subprocess.Popen[bytes], Cluster]]:
    """Start a cluster for a command that would go on for hours, and wait until it does."""
    started = CHECKOUT / ".cache/e2e" / f"{NAME}-started"
    started.unlink(missing_ok=True)
    command = ["sh", "-c", f"touch {started}; exec sleep 10000"]
    running = subprocess.Popen(
        [*COMMAND, "run", *options, "--name", NAME, *command],
        cwd=CHECKOUT,
        start_new_session=True,
    )
    try:
        wait_for("the cluster's command to run", lambda: _started(running, started), UP_S)
        yield running, clusters.find(NAME)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(running.pid, signal.SIGKILL)
        running.wait()
        started.unlink(missing_ok=True)
        clusters.down(Layout(NAME))


def _started(running: subprocess.Popen[bytes], mark: Path) -> bool:
    assert running.poll() is None, f"the harness ended with exit {running.returncode}"
    return mark.exists()


def run_a_pod(cluster: Cluster) -> None:
    """Let the scheduler place a pod, so that there are shims, sandboxes and overlay mounts."""
    with cluster.joined_network(), cluster.client as client:
        pods.await_account(client, "default")
        pods.create(client, "default", pods.pod("one"))
        pods.await_phase(client, "default", "one")


def assert_nothing_is_left(known: traces.Traces) -> None:
    assert {"containerd", "kubelet", "kube-apiserver", "sleep"} <= known.programs
    assert any(program.startswith("containerd-shim") for program in known.programs)
    assert traces.left_of(known, Layout(NAME)) == []


@pytest.fixture
def bystander() -> Iterator[subprocess.Popen[bytes]]:
    """Give a process that looks like ours by its name and is not."""
    decoy = subprocess.Popen(["/bin/bash", "-c", "exec -a kubelet sleep 1000"])
    yield decoy
    decoy.kill()
    decoy.wait()


@pytest.fixture(autouse=True)
def _nothing_outside_changes() -> Iterator[None]:
    before = traces.state_of_this_machine()
    yield
    assert traces.state_of_this_machine() == before


def test_up_and_down_by_hand_with_one_node_and_the_oldest_scheduler(
    bystander: subprocess.Popen[bytes],
) -> None:
    before = traces.state_of_this_machine()
    up = harness("up", "--nodes", "1", "--scheduler", "1.30")
    assert up.returncode == 0, up.stdout + up.stderr
    assert "1 nodes Ready after" in up.stdout
    cluster = clusters.find(NAME)
    assert cluster.layout == Layout(NAME, nodes(1), Scheduler.OLDEST)
    scheduler = cluster.control_plane.daemon("kube-scheduler").process
    exe = Path(f"/proc/{scheduler.pid}/exe")
    assert "kube_scheduler_oldest-1.30." in str(exe.readlink())
    run_a_pod(cluster)
    assert traces.state_of_this_machine() == before

    known = traces.traces_of(cluster.layout)
    again = harness("up")
    assert again.returncode != 0
    assert "is up already" in again.stderr
    assert all(process.alive() for process in known.processes)

    assert harness("down").returncode == 0
    assert_nothing_is_left(known)
    assert bystander.poll() is None


def test_a_killed_runner_takes_its_cluster_with_it() -> None:
    with runner("--nodes", "3") as (running, cluster):
        assert [node.name for node in cluster.layout.nodes] == ["node-1", "node-2", "node-3"]
        run_a_pod(cluster)
        known = traces.traces_of(cluster.layout)
        running.kill()
        wait_for(
            "every process of the cluster to end by itself",
            lambda: not any(process.alive() for process in known.processes),
            END_S,
        )
        assert harness("down").returncode == 0
        assert_nothing_is_left(known)


def test_an_interrupted_runner_takes_its_cluster_down() -> None:
    with runner("--nodes", "1") as (running, cluster):
        run_a_pod(cluster)
        known = traces.traces_of(cluster.layout)
        os.killpg(running.pid, signal.SIGINT)  # as a terminal does at Ctrl-C
        assert running.wait(END_S) == 130
        assert_nothing_is_left(known)


def test_up_clears_away_what_is_left_of_a_broken_cluster() -> None:
    assert harness("up", "--nodes", "1").returncode == 0
    broken = clusters.find(NAME)
    run_a_pod(broken)
    known = traces.traces_of(broken.layout)
    broken.control_plane.init.signal(signal.SIGKILL)
    wait_for("the control plane to end", lambda: not broken.control_plane.init.alive(), END_S)
    assert broken.machine("node-1").init.alive()

    told = harness("shell", "true")
    assert "is broken: control-plane is gone; `down`, then `up` makes it anew" in told.stderr
    again = harness("up", "--nodes", "1")
    assert again.returncode == 0, again.stdout + again.stderr
    assert not any(process.alive() for process in known.processes)
    assert harness("down").returncode == 0
    assert_nothing_is_left(known)


def test_a_start_that_fails_leaves_nothing_running(monkeypatch: pytest.MonkeyPatch) -> None:
    known: list[traces.Traces] = []

    def fail(machine: object) -> None:
        known.append(traces.traces_of(Layout(NAME)))
        raise MachineError("planted failure")

    monkeypatch.setattr(control_plane, "start_controllers", fail)
    with pytest.raises(MachineError, match="planted"):
        clusters.up(Layout(NAME, nodes(1)))
    assert {"etcd", "kube-apiserver", "containerd"} <= known[0].programs
    assert not any(process.alive() for process in known[0].processes)
    clusters.down(Layout(NAME))
    assert traces.left_of(known[0], Layout(NAME)) == []


def test_what_cannot_be_started_is_refused_with_the_reason() -> None:
    none = harness("up", "--nodes", "0")
    assert none.returncode != 0
    assert "0 nodes: a cluster has 1 to 200 real ones" in none.stderr
    missing = harness("shell", "true")
    assert missing.returncode != 0
    assert f"there is no cluster {NAME}" in missing.stderr
