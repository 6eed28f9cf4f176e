"""The server as a process: it serves, stops in time, and resumes its state."""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from pathlib import Path

import pytest

from hami_sandbox import access
from hami_sandbox.apiserver.main import main
from sandbox.tests.cluster.conformance import served
from tests.kubeapi.client import ApiError, Client
from tests.kubeapi.paths import config_maps, namespaces


def test_a_snapshot_outlives_the_process_and_watches_end_with_it(tmp_path: Path) -> None:
    more = ("--snapshot", str(tmp_path / "state.json"))
    with served(tmp_path / "one", *more) as kubeconfig, Client.from_kubeconfig(kubeconfig) as api:
        made = api.create(
            config_maps("default"), {"metadata": {"name": "kept"}, "data": {"k": "v"}}
        )
        watch = api.watch(config_maps("default"))
    with watch:
        assert [event["type"] for event in watch] == ["ADDED"]  # and then its proper end
    with served(tmp_path / "two", *more) as kubeconfig, Client.from_kubeconfig(kubeconfig) as api:
        assert api.get(config_maps("default", "kept")) == made
        assert api.find(namespaces("kube-system")) is not None
        newer = api.create(config_maps("default"), {"metadata": {"name": "new"}})
        assert int(newer["metadata"]["resourceVersion"]) > int(made["metadata"]["resourceVersion"])


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    folder = tmp_path_factory.mktemp("served")
    with served(folder) as kubeconfig, Client.from_kubeconfig(kubeconfig) as client:
        yield client


def test_what_only_a_sandbox_can_do_is_for_its_administrator(api: Client) -> None:
    with api.with_token(None) as nobody, pytest.raises(ApiError, match="forbidden"):
        nobody.call("POST", "/sandbox/compact", query={"revision": "1"})
    assert api.call("POST", "/sandbox/compact", query={"revision": "1"}) == {}
    for query in ({}, {"revision": "new"}):
        with pytest.raises(ApiError, match="revision"):
            api.call("POST", "/sandbox/compact", query=query)


def test_a_snapshot_needs_a_file(api: Client) -> None:
    with pytest.raises(ApiError, match="--snapshot FILE") as refused:
        api.call("POST", "/sandbox/snapshot")
    assert refused.value.status == 400


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--folder", "/nowhere"], "make it with hami_sandbox.access"),
        (["--folder", "/nowhere", "--history", "0"], "at least 1 change"),
    ],
)
def test_a_start_that_cannot_succeed_says_what_to_do(
    capsys: pytest.CaptureFixture[str], arguments: list[str], told: str
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    assert told in capsys.readouterr().err


def test_only_the_sandboxs_own_authority_vouches_for_it(api: Client, tmp_path: Path) -> None:
    access.make(tmp_path)
    stranger = Client(api.access.server, ca_file=tmp_path / access.AUTHORITY)
    with stranger, pytest.raises(ssl.SSLError):
        stranger.get("/version")


def test_a_body_beyond_the_limit_is_refused_and_the_connection_lives_on(api: Client) -> None:
    huge = {"metadata": {"name": "huge"}, "data": {"k": "x" * (4 * 2**20)}}
    with pytest.raises(ApiError) as refused:
        api.create(config_maps("default"), huge)
    assert (refused.value.status, refused.value.reason) == (413, "RequestEntityTooLarge")
    assert api.get("/version")["major"] == "1"
