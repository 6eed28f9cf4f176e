"""Hundreds of simulated nodes in one command, for the scheduler's side."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.e2e import pods, sizes
from tests.e2e.cluster import fleet
from tests.e2e.cluster.cluster import Cluster
from tests.kubeapi.client import Client, wait_for
from tests.kubeapi.paths import nodes
from tests.kubeapi.paths import pods as pods_path

COUNT = sizes.FLEET
PODS = 50


@pytest.fixture(scope="module")
def names(cluster: Cluster) -> Iterator[list[str]]:
    said: list[str] = []
    names = fleet.add(cluster, COUNT, say=said.append)
    assert f"{COUNT} simulated nodes Ready" in said[0]
    yield names
    fleet.remove(cluster)


def test_pods_that_ask_for_simulated_nodes_run_there_and_go(
    client: Client, namespace: str, names: list[str]
) -> None:
    bodies = (
        pods.pod(
            f"pod-{number}",
            nodeSelector={fleet.MARK: "true"},
            tolerations=[fleet.TOLERATION],
        )
        for number in range(PODS)
    )
    pods.create(client, namespace, *bodies)

    def all_run() -> list[str] | None:
        found = client.get(pods_path(namespace))["items"]
        running = [p["spec"]["nodeName"] for p in found if p["status"]["phase"] == "Running"]
        return running if len(running) == PODS else None

    where = wait_for(f"{PODS} pods to run", all_run, 120)
    assert set(where) <= set(names)
    client.delete(pods_path(namespace))
    pods.await_gone(client, namespace)


def test_pods_that_do_not_ask_stay_on_real_nodes_and_simulated_ones_stay_ready(
    client: Client, namespace: str, names: list[str]
) -> None:
    pods.create(client, namespace, pods.pod("ordinary"))
    assert pods.await_phase(client, namespace, "ordinary")["spec"]["nodeName"] not in names
    found = client.get(nodes(), labelSelector=f"{fleet.MARK}=true")["items"]
    ready = {
        node["metadata"]["name"]
        for node in found
        for condition in node["status"]["conditions"]
        if condition["type"] == "Ready" and condition["status"] == "True"
    }
    assert ready == set(names)
