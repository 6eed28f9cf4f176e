"""What every end-to-end test gets: one real cluster for the session, and a namespace of its own.

`HAMI_E2E_CLUSTER=dev` uses a cluster that is up already, for working on a test without waiting.
"""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Iterator

import pytest

from tests.e2e.cluster import cluster as clusters
from tests.e2e.cluster.cluster import Cluster
from tests.e2e.cluster.layout import Layout
from tests.kubeapi.client import Client, wait_for
from tests.kubeapi.paths import core, namespaces

ACCOUNT_S = 30


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    if name := os.environ.get("HAMI_E2E_CLUSTER"):
        yield clusters.find(name)
        return
    with clusters.temporary(Layout("tests")) as running:
        yield running


@pytest.fixture(autouse=True)
def _in_the_clusters_network(request: pytest.FixtureRequest) -> Iterator[None]:
    with contextlib.ExitStack() as stack:
        if "cluster" in request.fixturenames:
            running: Cluster = request.getfixturevalue("cluster")
            stack.enter_context(running.joined_network())
        yield


@pytest.fixture
def client(cluster: Cluster) -> Iterator[Client]:
    with cluster.client as client:
        yield client


@pytest.fixture
def namespace(client: Client) -> Iterator[str]:
    name = f"test-{secrets.token_hex(4)}"
    client.create(namespaces(), {"metadata": {"name": name}})
    accounts = core("serviceaccounts", name)
    wait_for(
        f"a service account in {name}", lambda: client.get(accounts)["items"] or None, ACCOUNT_S
    )
    yield name
    client.delete(namespaces(name))
