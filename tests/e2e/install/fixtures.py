"""The audit of a test whose grants are signed.

A test module that imports `_audited` has this one in place of the one that all tests have.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.auditor.gathering import Sources
from tests.e2e.auditor.recording import Recorder
from tests.e2e.cluster.cluster import Cluster
from tests.e2e.install import identity, scheduler_config
from tests.kubeapi.client import Client, wait_for
from tests.kubeapi.paths import pods

GONE_S = 60


@pytest.fixture(autouse=True)
def _audited(cluster: Cluster, _in_the_clusters_network: None, tmp_path: Path) -> Iterator[None]:
    with cluster.client as client, Recorder(client, tmp_path / "timeline.jsonl") as recorder:
        yield
        _remove_pods(client)
        findings = Sources(
            client=client,
            roots={each.name: cluster.machine(each).root for each in cluster.layout.nodes},
            recorder=recorder,
            grant_keys=identity.keys(cluster),
            quiet=True,
        ).settle()
    assert not findings, "\n".join(map(str, findings))


def _remove_pods(client: Client) -> None:
    """Take the test's pods away: their namespace, which is going, would do it later.

    Simulated pods run at once, and no agent writes that they were given their cards: while they
    live they would count as stuck. What they held is in the record.
    """

    def none_left() -> bool:
        ours = f"spec.schedulerName={scheduler_config.NAME}"
        found = client.get(pods(), fieldSelector=ours)["items"]
        for namespace in {pod["metadata"]["namespace"] for pod in found}:
            client.delete(pods(namespace), fieldSelector=ours)
        return not found

    wait_for("the pods of the test to be gone", none_left, GONE_S, 0.5)
