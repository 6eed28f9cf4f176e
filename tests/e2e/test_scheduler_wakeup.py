"""A freed card finds its waiting pod within seconds, also when our watch is late."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from tests.e2e import pods
from tests.e2e.cluster.cluster import Cluster
from tests.e2e.cluster.layout import Scheduler
from tests.e2e.install import audit, installing, nodes, placing, replica
from tests.e2e.install.fixtures import _audited  # noqa: F401 (our grants are signed)
from tests.e2e.install.installing import Install
from tests.kubeapi.client import Client, wait_for
from tests.kubeapi.paths import pods as pods_path

# Memory and cores are resources that no node offers in its status, as is usual.
WHOLE = nodes.limits(1, memory=8000, cores=100)
BOUND_S = 30
FAILED_S = 60
TRIES = 5
LATE_S = 2.0
# What is required. A busy machine may take longer; beyond the ceiling something is wrong.
REQUIRED_S = 5.0
CEILING_S = 10.0
NUDGE = "hami.test/nudge"
# Longer than kube-scheduler's longest back-off, and the second in which it looks at who is due.
REST_S = 4.0


@pytest.fixture(scope="module")
def node(cluster: Cluster) -> Iterator[str]:
    with nodes.simulated(cluster, 1) as names:
        yield names[0]


@pytest.fixture(scope="module", params=list(Scheduler), ids=str)
def install(request: pytest.FixtureRequest, cluster: Cluster, node: str) -> Iterator[Install]:
    with installing.running(cluster, scheduler=request.param, proxied=True) as install:
        yield install


def test_a_pod_that_failed_often_is_bound_soon_after_a_card_is_free(
    client: Client, namespace: str, install: Install, node: str, capsys: pytest.CaptureFixture[str]
) -> None:
    pods.create(client, namespace, placing.pod("holder", WHOLE))
    placing.await_one_bound(client, namespace, "holder", BOUND_S)
    pods.create(client, namespace, placing.pod("waiting", WHOLE))
    fail_often(client, install, namespace, "waiting")
    install.delay_watches(install.only, LATE_S)
    mark = audit.mark(install.cluster)
    with client.watch(
        pods_path(namespace), query={"fieldSelector": "metadata.name=holder"}
    ) as watch:
        client.delete(pods_path(namespace, "holder"))
        watch.until("DELETED", "holder", timeout=BOUND_S)
        freed = replica.now()
    placing.await_one_bound(client, namespace, "waiting", BOUND_S)
    bindings = wait_for("the binding", lambda: mark.bindings(namespace), BOUND_S)
    install.delay_watches(install.only, 0)
    seconds = bindings[-1].received - freed
    with capsys.disabled():
        print(  # noqa: T201 (the figure that is required)
            f"\nbound {seconds:.2f} s after the card was free, {LATE_S:g} s of it our watch was "
            f"late (required: {REQUIRED_S:g} s)"
        )
    assert [entry.good for entry in bindings] == [True]
    assert seconds <= CEILING_S
    assert seconds > LATE_S - 0.5, "the watch was not late, so this proved nothing"


def fail_often(client: Client, install: Install, namespace: str, name: str) -> None:
    """Make kube-scheduler try a pod in vain, by changes of the pod that matter to nobody."""

    def failed() -> float:
        return install.kube_scheduler_metric(
            install.only, "scheduler_schedule_attempts_total", result="unschedulable"
        )

    before = failed()
    tries = iter(range(1000))

    def enough() -> bool:
        nudge = {"annotations": {NUDGE: str(next(tries))}}
        client.patch(pods_path(namespace, name), {"metadata": nudge})
        return failed() - before >= TRIES

    wait_for(f"the pod to fail {TRIES} times", enough, FAILED_S, 0.5)
    # Only a pod that kube-scheduler has put aside has to be woken.
    last = (failed(), time.monotonic())

    def at_rest() -> bool:
        nonlocal last
        if failed() != last[0]:
            last = (failed(), time.monotonic())
        return time.monotonic() - last[1] > REST_S

    wait_for("the pod to be put aside", at_rest, FAILED_S, 0.5)
