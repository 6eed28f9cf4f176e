"""Nodes that need HAMi's lock: binds to a node wait, and none fails."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator

import pytest

from hami.wire import annotation_keys, node_marks
from tests.e2e import pods
from tests.e2e.cluster.cluster import Cluster
from tests.e2e.install import audit, hami_node, installing, nodes, placing
from tests.e2e.install.fixtures import _audited  # noqa: F401 (our grants are signed)
from tests.e2e.install.hami_node import HamiNode
from tests.e2e.install.installing import Install
from tests.kubeapi.client import Client, Object, wait_for
from tests.kubeapi.paths import core

PODS = 10
BOUND_S = 60
WRITTEN_S = 60


@pytest.fixture(scope="module")
def node(cluster: Cluster) -> Iterator[HamiNode]:
    with hami_node.running(cluster) as node:
        yield node


@pytest.fixture(scope="module")
def install(cluster: Cluster, node: HamiNode) -> Iterator[Install]:
    with installing.running(cluster) as install:
        yield install


def pod(name: str) -> Object:
    asked = nodes.limits(1, memory=1000)
    return placing.pod(name, asked, nodeSelector=hami_node.SELECTOR)


def test_binds_to_a_node_with_a_lock_wait_their_turn(
    cluster: Cluster, client: Client, namespace: str, install: Install, node: HamiNode
) -> None:
    node.served.clear()
    mark = audit.mark(cluster)
    names = [f"pod-{number}" for number in range(PODS)]
    pods.create(client, namespace, *map(pod, names))
    placing.await_bound(client, namespace, BOUND_S)
    wait_for("the last pod to be served", lambda: len(node.served) == PODS, BOUND_S)
    bindings = wait_for(
        "all bindings in the audit log",
        lambda: found if len(found := mark.bindings(namespace)) >= PODS else None,
        WRITTEN_S,
    )
    assert [entry.good for entry in bindings] == [True] * PODS
    # kube-scheduler sends its binds side by side, so their order is not that of the pods.
    assert sorted(entry.name for entry in bindings) == names
    assert node.served == [entry.name for entry in bindings]
    failed = client.get(core("events", namespace), fieldSelector="type=Warning")["items"]
    assert [event["message"] for event in failed] == []
    assert placing.overbooked(client) == []


def test_a_lock_whose_pod_is_gone_stops_nobody(
    client: Client, namespace: str, install: Install, node: HamiNode
) -> None:
    node.served.clear()
    left = node_marks.Lock(dt.datetime.now(dt.UTC), namespace, "never-was")
    nodes.annotate(
        client, hami_node.NAME, {annotation_keys.NODE_LOCK: node_marks.encode_lock(left)}
    )
    pods.create(client, namespace, pod("next"))
    placing.await_one_bound(client, namespace, "next", BOUND_S)
    wait_for("its lock to go", lambda: node.served == ["next"], BOUND_S)
