"""A freed card requeues its unschedulable pod, even when our watch is late."""

from __future__ import annotations

import itertools
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
# It catches hangs, and is less than the five minutes after which kube-scheduler looks by itself at
# pods that it put aside.
BOUND_S = 120
FAILED_S = 120
TRIES = 5
# Two more failures: the second of them began after the first had ended.
IN_VAIN = 2
HELD_S = 600.0
# What is required; it is shown, and decides nothing: the machine may be busy.
REQUIRED_S = 5.0
NUDGE = "hami.test/nudge"
# Of kube-scheduler.
QUEUES = ("active", "backoff", "unschedulable")


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
    fail(client, install, namespace, "waiting", TRIES)
    mark = audit.mark(install.cluster)
    install.delay_watches(install.only, HELD_S, "/pods")
    with client.watch(
        pods_path(namespace), query={"fieldSelector": "metadata.name=holder"}
    ) as watch:
        client.delete(pods_path(namespace, "holder"))
        watch.until("DELETED", "holder", timeout=BOUND_S)
    # The card is free, and we do not know it yet: whatever kube-scheduler asks is in vain.
    fail(client, install, namespace, "waiting", IN_VAIN)
    assert mark.bindings(namespace) == []
    told = replica.now()
    install.delay_watches(install.only, 0)
    placing.await_one_bound(client, namespace, "waiting", BOUND_S)
    bindings = wait_for("the binding", lambda: mark.bindings(namespace), BOUND_S)
    with capsys.disabled():
        print(  # noqa: T201 (the figure that is required)
            f"\nbound {bindings[-1].received - told:.2f} s after our watch was late no more "
            f"(required: {REQUIRED_S:g} s)"
        )
    assert [entry.good for entry in bindings] == [True]


def fail(client: Client, install: Install, namespace: str, name: str, times: int) -> None:
    """Have kube-scheduler try in vain so often, and then put the pod aside.

    Only a pod that it has put aside has to be woken.
    """

    def metric(name: str, **labels: str) -> float:
        return install.kube_scheduler_metric(install.only, f"scheduler_{name}", **labels)

    def failed() -> float:
        return metric("schedule_attempts_total", result="unschedulable")

    def enough() -> bool:
        nudge = {"annotations": {NUDGE: f"{next(nudges)} of {times}"}}
        client.patch(pods_path(namespace, name), {"metadata": nudge})
        return failed() - before >= times

    def put_aside() -> bool:
        waiting = {queue: metric("pending_pods", queue=queue) for queue in QUEUES}
        return waiting == dict.fromkeys(QUEUES, 0.0) | {"unschedulable": 1.0}

    before, nudges = failed(), itertools.count()
    wait_for(f"the pod to fail {times} times", enough, FAILED_S, 0.5)
    wait_for("the pod to be put aside", put_aside, FAILED_S, 0.5)
