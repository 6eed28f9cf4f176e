"""Fixtures of the conformance tests: target, namespace, nodes."""

from __future__ import annotations

import contextlib
import http
import pathlib
import secrets
from collections.abc import Callable, Iterator

import pytest

from tests.conformance import objects, target
from tests.conformance.hooks import Hooks
from tests.conformance.target import NEEDS, Target, TargetError
from tests.kubeapi.client import ApiError, Client, Object
from tests.kubeapi.paths import core, namespaces, nodes, pods

HERE = pathlib.Path(__file__).parent


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers",
        f"needs(*what): what of the target the test relies on, out of {', '.join(sorted(NEEDS))}",
    )


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out the tests whose needs the target is declared to lack."""
    try:
        lacking = target.lacks()
    except TargetError as error:
        raise pytest.UsageError(str(error)) from None
    kept: list[pytest.Item] = []
    left_out: list[pytest.Item] = []
    for item in items:
        needed: set[str] = set()
        if HERE in item.path.parents:
            for mark in item.iter_markers("needs"):
                needed.update(mark.args)
        unknown = needed - NEEDS.keys()
        if unknown:
            raise pytest.UsageError(
                f"{item.nodeid} needs {sorted(unknown)}: not in {sorted(NEEDS)}"
            )
        (left_out if needed & lacking else kept).append(item)
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = kept


@pytest.fixture(scope="session", name="target")
def target_fixture() -> Iterator[Target]:
    missing = ""
    try:
        found = target.from_environment()
    except TargetError as error:
        missing = str(error)
    if missing:
        pytest.fail(missing, pytrace=False)
    with found.client:
        yield found


@pytest.fixture
def api(target: Target) -> Client:
    return target.client


@pytest.fixture
def namespace(api: Client) -> Iterator[str]:
    """Give a new namespace that pods can be created in; its deletion is not waited for."""
    made = api.create(namespaces(), {"metadata": {"generateName": "conformance-"}})
    name: str = made["metadata"]["name"]
    # Pods need this account. A controller makes it where one runs; whoever comes first wins.
    with _unless(http.HTTPStatus.CONFLICT):
        api.create(core("serviceaccounts", name), {"metadata": {"name": "default"}})
    yield name
    # Nobody's kubelet confirms the end of a bound pod, and the namespace would wait for it.
    api.delete(pods(name), gracePeriodSeconds=0)
    api.delete(namespaces(name))


@pytest.fixture
def make_node(api: Client) -> Iterator[Callable[..., Object]]:
    """Give a maker of Ready nodes that attract nobody's pods and are gone after the test."""
    made: list[str] = []

    def make(**fields: object) -> Object:
        name = f"conformance-{secrets.token_hex(4)}"
        api.create(nodes(), objects.node(name, **fields))
        made.append(name)
        return api.patch(nodes(name, "status"), {"status": objects.ready_node_status()})

    yield make
    for name in made:
        with _unless(http.HTTPStatus.NOT_FOUND):
            api.delete(nodes(name))


@pytest.fixture
def node(make_node: Callable[..., Object]) -> str:
    """Give the name of one Ready node."""
    name: str = make_node()["metadata"]["name"]
    return name


@pytest.fixture
def hooks(target: Target) -> Iterator[Hooks]:
    """Give an HTTPS server for admission webhooks that the target can reach."""
    server = Hooks(target.callback)
    yield server
    server.close()


@contextlib.contextmanager
def _unless(status: int) -> Iterator[None]:
    try:
        yield
    except ApiError as error:
        if error.status != status:
            raise
