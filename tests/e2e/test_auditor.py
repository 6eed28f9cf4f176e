"""Every kind of fault, planted on the real cluster, is reported alone."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e import pods
from tests.e2e.auditor.findings import Kind
from tests.e2e.auditor.gathering import Sources
from tests.e2e.auditor.plant import PLANTS, Context, Plant
from tests.e2e.auditor.recording import Recorder
from tests.e2e.bare_plugin import on_node
from tests.e2e.cluster.cluster import Cluster
from tests.kubeapi.client import Client
from tests.kubeapi.paths import namespaces
from tests.kubeapi.paths import pods as pods_path

PATIENCE_S = 2
NODE = "node-1"
NAMESPACE = "audited"


@pytest.fixture(scope="module")
def context(cluster: Cluster) -> Iterator[Context]:
    """Give a cluster at rest with one pod that was late-bound."""
    with (
        cluster.joined_network(),
        cluster.client as client,
        on_node.running(cluster, NODE) as resource,
    ):
        client.create(namespaces(), {"metadata": {"name": NAMESPACE}})
        pods.await_account(client, NAMESPACE)
        limits = {"resources": {"limits": {resource: "1"}}}
        pods.create(client, NAMESPACE, pods.pod("held", nodeName=NODE, container=limits))
        pod = pods.await_phase(client, NAMESPACE, "held")
        roots = {each.name: cluster.machine(each).root for each in cluster.layout.nodes}
        yield Context(client=client, roots=roots, namespace=NAMESPACE, pod=pod)
        client.delete(pods_path(NAMESPACE))
        pods.await_gone(client, NAMESPACE)
        client.delete(namespaces(NAMESPACE))


def test_a_cluster_with_a_late_bound_pod_at_rest_has_no_fault(
    client: Client, context: Context
) -> None:
    assert Sources(client=client, roots=context.roots).settle() == []


@pytest.mark.not_audited
@pytest.mark.parametrize("plant", PLANTS, ids=lambda plant: plant.name)
def test_a_planted_fault_is_reported(
    client: Client, context: Context, plant: Plant, tmp_path: Path
) -> None:
    with Recorder(client, tmp_path / "timeline.jsonl") as recorder:
        sources = Sources(client=client, roots=context.roots, recorder=recorder)
        undo = plant.plant(context)
        try:
            found = {finding.kind for finding in sources.settle(patience=PATIENCE_S)}
        finally:
            undo()
    assert found == plant.expected | plant.recorded


def test_every_kind_of_fault_was_planted_and_nothing_of_it_is_left(
    client: Client, context: Context
) -> None:
    assert {kind for plant in PLANTS for kind in plant.expected | plant.recorded} == set(Kind)
    assert Sources(client=client, roots=context.roots).settle() == []
