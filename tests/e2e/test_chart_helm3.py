"""The same chart with Helm 3, beside Kubernetes' own parts and under another name."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.e2e import pods
from tests.e2e.chart import asking
from tests.e2e.chart import release as releases
from tests.e2e.chart.fixtures import _audited, _told  # noqa: F401 (for every test)
from tests.e2e.chart.release import Helm, Release
from tests.e2e.cluster.cluster import Cluster
from tests.e2e.install import nodes, placing
from tests.kubeapi.client import Client

BOUND_S = 30


@pytest.fixture(scope="module")
def release(cluster: Cluster) -> Iterator[Release]:
    with (
        releases.installed(
            cluster, helm=Helm.THREE, release="gpus", namespace="kube-system"
        ) as release,
        nodes.simulated(cluster, 1),
    ):
        yield release


def test_helm_3_installs_it_as_well(client: Client, namespace: str, release: Release) -> None:
    assert [pod["metadata"]["name"].rsplit("-", 2)[0] for pod in release.ready()] == [
        "gpus-hami-scheduler"
    ]
    (made,) = pods.create(client, namespace, asking.for_simulated_nodes("ordinary"))
    assert asking.is_ours(made)
    bound = placing.await_one_bound(client, namespace, "ordinary", BOUND_S)
    node, cards = placing.given(bound)
    assert cards == [[f"GPU-{node}-0"]]
