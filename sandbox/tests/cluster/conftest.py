"""One API server for all tests with kubectl, and a namespace for each."""

from __future__ import annotations

import pathlib
from collections.abc import Iterator

import pytest

from sandbox.tests.cluster.conformance import served
from sandbox.tests.cluster.kubectl import Kubectl
from tests.kubeapi.client import Client
from tests.kubeapi.paths import namespaces


@pytest.fixture(scope="session")
def kubeconfig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[pathlib.Path]:
    with served(tmp_path_factory.mktemp("apiserver")) as path:
        yield path


@pytest.fixture(scope="session")
def api(kubeconfig: pathlib.Path) -> Iterator[Client]:
    with Client.from_kubeconfig(kubeconfig) as client:
        yield client


@pytest.fixture
def namespace(api: Client) -> str:
    made = api.create(namespaces(), {"metadata": {"generateName": "test-"}})
    name: str = made["metadata"]["name"]
    return name


@pytest.fixture
def kubectl(kubeconfig: pathlib.Path, namespace: str) -> Kubectl:
    return Kubectl(kubeconfig, namespace)
