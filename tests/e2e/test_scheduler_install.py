"""The installation for tests: a replica, and its end with its runner."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

from tests.e2e.cluster import cgroups, layout
from tests.e2e.cluster.cluster import Cluster
from tests.e2e.install import audit, identity, installing
from tests.e2e.install.installing import PORT, Install
from tests.e2e.install.replica import HAMI, KUBE_SCHEDULER
from tests.kubeapi.client import Client, wait_for
from tests.kubeapi.paths import leases
from tests.kubeapi.paths import pods as pods_path

ENDED_S = 60
ROLE_S = 60
RUNNER = """
import sys, time
from tests.e2e.cluster import cluster as clusters
from tests.e2e.install import installing
with installing.running(clusters.find(sys.argv[1]), replicas=1):
    print("ready", flush=True)
    time.sleep(600)
"""


@pytest.fixture
def install(cluster: Cluster) -> Iterator[Install]:
    with installing.running(cluster, replicas=2) as install:
        yield install


def test_a_replica_is_a_host_of_its_own_and_lives_on_when_its_programs_die(
    cluster: Cluster, client: Client, install: Install
) -> None:
    leader = install.await_ready()
    other = install.other(leader)
    assert leader.http("/readyz", PORT).status == 200
    assert other.http("/readyz", PORT).status == 503
    lease = client.get(leases(identity.NAMESPACE, identity.LEASE))
    assert lease["spec"]["holderIdentity"].startswith(f"{leader.name}_")

    def role(of: str) -> str | None:
        labels: dict[str, str] = client.get(pods_path(identity.NAMESPACE, of))["metadata"]["labels"]
        return labels.get(installing.ROLE_LABEL)

    wait_for("the leader's role", lambda: role(leader.name) == "leader", ROLE_S)
    assert role(other.name) != "leader"
    mark = audit.mark(cluster)
    for program in (HAMI, KUBE_SCHEDULER):
        before = other.kill(program)
        assert before is not None
        assert other.await_alive(program, other_than=before) != before
        assert [note["event"] for note in other.history(program)] == ["started", "ended", "started"]
    install.await_ready()
    assert {entry.address for entry in audit.ours(mark.entries())} <= {
        leader.address,
        other.address,
    }


def test_a_killed_runner_takes_its_replicas_with_it(cluster: Cluster) -> None:
    before = cgroups.processes(cluster.layout.group)
    runner = subprocess.Popen(
        [sys.executable, "-c", RUNNER, cluster.layout.name],
        cwd=layout.CHECKOUT,
        stdout=subprocess.PIPE,
    )
    assert runner.stdout is not None
    with runner.stdout:
        assert runner.stdout.readline() == b"ready\n"
        assert len(cgroups.processes(cluster.layout.group) - before) > 3
        runner.send_signal(signal.SIGKILL)
        runner.wait()
    ended = f"sched-1 of {cluster.layout.name} to end"
    wait_for(ended, lambda: not cgroups.processes(cluster.layout.group) - before, ENDED_S)
