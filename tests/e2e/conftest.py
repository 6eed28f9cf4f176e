"""Fixtures of the end-to-end tests: one cluster, a namespace each, an audit.

Each worker of pytest-xdist has a cluster of its own.

After every test the auditor looks at the whole cluster and at all that happened during the test.

`HAMI_E2E_CLUSTER=dev` uses a cluster that is up already, for working on a test without waiting.
"""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e import pods
from tests.e2e.agent import installation
from tests.e2e.agent.installation import Agents
from tests.e2e.auditor.gathering import Sources
from tests.e2e.auditor.recording import Recorder
from tests.e2e.cluster import cluster as clusters
from tests.e2e.cluster.cluster import Cluster
from tests.e2e.cluster.layout import Layout
from tests.kubeapi.client import Client
from tests.kubeapi.paths import namespaces


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers", "not_audited: the test plants faults itself and says what the auditor must find"
    )


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    if name := os.environ.get("HAMI_E2E_CLUSTER"):
        yield clusters.find(name)
        return
    worker = os.environ.get("PYTEST_XDIST_WORKER", "")
    with clusters.temporary(Layout(f"tests{worker}")) as running:
        with running.joined_network(), running.client as client:
            pods.await_account(client, "default")  # the first test may create pods there at once
        yield running


@pytest.fixture(scope="session")
def agents(cluster: Cluster) -> Iterator[Agents]:
    """Give the whole product with the nodes' agents: one installation for all tests of them.

    `HAMI_E2E_AGENTS=1` uses the one that `python -m tests.e2e.agent` keeps.
    """
    if os.environ.get("HAMI_E2E_AGENTS"):
        with cluster.joined_network():
            yield installation.find(cluster)
        return
    with installation.installed(cluster) as made:
        yield made


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Let the tests that share an installation come last: others install their own before."""
    items.sort(key=lambda item: "agents" in getattr(item, "fixturenames", ()))


@pytest.fixture(autouse=True)
def _in_the_clusters_network(request: pytest.FixtureRequest) -> Iterator[None]:
    with contextlib.ExitStack() as stack:
        if "cluster" in request.fixturenames:
            running: Cluster = request.getfixturevalue("cluster")
            stack.enter_context(running.joined_network())
        yield


@pytest.fixture(autouse=True)
def _audited(
    request: pytest.FixtureRequest, _in_the_clusters_network: None, tmp_path: Path
) -> Iterator[None]:
    if "cluster" not in request.fixturenames or request.node.get_closest_marker("not_audited"):
        yield
        return
    running: Cluster = request.getfixturevalue("cluster")
    with running.client as client, Recorder(client, tmp_path / "timeline.jsonl") as recorder:
        yield
        roots = {each.name: running.machine(each).root for each in running.layout.nodes}
        findings = Sources(client=client, roots=roots, recorder=recorder).settle()
    assert not findings, "\n".join(map(str, findings))


@pytest.fixture
def client(cluster: Cluster) -> Iterator[Client]:
    with cluster.client as client:
        yield client


@pytest.fixture
def namespace(client: Client) -> Iterator[str]:
    name = f"test-{secrets.token_hex(4)}"
    client.create(namespaces(), {"metadata": {"name": name}})
    pods.await_account(client, name)
    yield name
    client.delete(namespaces(name))
