"""Hundreds of pods onto hundreds of nodes: one write a pod, none in vain."""

from __future__ import annotations

import itertools
import time
from collections import Counter
from collections.abc import Iterator

import pytest

from tests.e2e import pods, sizes
from tests.e2e.cluster.cluster import Cluster
from tests.e2e.install import audit, installing, nodes, placing
from tests.e2e.install.fixtures import _audited  # noqa: F401 (our grants are signed)
from tests.e2e.install.installing import Install
from tests.kubeapi.client import Client, wait_for
from tests.kubeapi.paths import core
from tests.kubeapi.paths import pods as pods_path

NODES = sizes.FLEET
PODS = sizes.PODS_ON_A_FLEET
BOUND_S = 240
SEEN_S = 240
WRITTEN_S = 60
# Events a pod. Above a rate they are gathered into events on the namespace.
EVENTS_EACH = 2


@pytest.fixture(scope="module")
def names(cluster: Cluster) -> Iterator[list[str]]:
    with nodes.simulated(cluster, NODES, cards_each=2, count=4) as names:
        yield names


@pytest.fixture(scope="module")
def install(cluster: Cluster, names: list[str]) -> Iterator[Install]:
    with installing.running(cluster) as install:
        yield install


def test_every_feasible_node_reaches_the_filter(
    client: Client, namespace: str, install: Install, names: list[str]
) -> None:
    """kube-scheduler would stop at a fraction of them if it were not told otherwise."""

    def counted() -> tuple[float, float]:
        name = "hami_scheduler_filter_nodes"
        asked = install.metric(install.only, f"{name}_count")
        return asked, install.metric(install.only, f"{name}_sum")

    numbers = itertools.count()

    def all_seen() -> bool:
        """Place one more pod: kube-scheduler may not know of every node yet."""
        before, name = counted(), f"pod-{next(numbers)}"
        pods.create(client, namespace, placing.pod(name))
        placing.await_one_bound(client, namespace, name, BOUND_S)
        after = counted()
        return after[1] - before[1] == (after[0] - before[0]) * NODES

    wait_for("every node to reach the filter", all_seen, SEEN_S)


def test_a_burst_is_bound_with_one_write_a_pod(
    cluster: Cluster,
    client: Client,
    namespace: str,
    install: Install,
    capsys: pytest.CaptureFixture[str],
) -> None:
    mark = audit.mark(cluster)
    begin = time.monotonic()
    asked = nodes.limits(1, memory=2000, cores=20)
    placing.create_at_once(
        client, namespace, (placing.pod(f"pod-{number}", asked) for number in range(PODS))
    )
    created = time.monotonic() - begin
    placing.await_bound(client, namespace, BOUND_S)
    seconds = time.monotonic() - begin
    assert placing.overbooked(client) == []

    wait_for(
        f"{PODS} bindings in the audit log",
        lambda: len(mark.bindings(namespace)) >= PODS,
        WRITTEN_S,
    )
    written = mark.entries()
    refused = [entry for entry in mark.bindings(namespace) if not entry.good]
    assert not refused
    each = audit.writes_per_pod(written, namespace)
    assert len(each) == PODS
    assert Counter(each.values()) == {1: PODS}
    others = [
        entry
        for entry in audit.ours(written)
        if (entry.resource, entry.namespace)
        not in {("pods/binding", namespace), ("events", namespace)}
    ]
    assert not others
    told = audit.events(written, namespace)
    span = told[-1].received - told[0].received
    gathered = client.get(core("events", namespace), fieldSelector="involvedObject.kind=Namespace")[
        "items"
    ]
    with capsys.disabled():
        print(  # noqa: T201 (figures for the reader)
            f"\n{PODS} pods onto {NODES} nodes: created in {created:.1f} s, bound after "
            f"{seconds:.1f} s; {len(told)} events in {span:.1f} s, {len(gathered)} of them gathered"
        )
    assert len(told) <= EVENTS_EACH * PODS
    # Above which rate they are gathered is shown with a clock of its own, in
    # tests/unit/kube/test_events.py.
    failed = client.get(core("events", namespace), fieldSelector="type=Warning")["items"]
    assert [event["message"] for event in failed] == []
    client.delete(pods_path(namespace))
    pods.await_gone(client, namespace)
