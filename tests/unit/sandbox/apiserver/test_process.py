"""The server as a process: it serves, stops in time, and comes back with what it knew."""

from __future__ import annotations

import ssl
from pathlib import Path

import pytest

from hami.sandbox import access
from tests.kubeapi.client import ApiError, Client
from tests.kubeapi.paths import config_maps, namespaces
from tests.sandbox.conformance import served


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


def test_what_only_a_sandbox_can_do_is_for_its_administrator(tmp_path: Path) -> None:
    with served(tmp_path) as kubeconfig, Client.from_kubeconfig(kubeconfig) as api:
        with api.with_token(None) as nobody, pytest.raises(ApiError, match="forbidden"):
            nobody.call("POST", "/sandbox/compact", query={"revision": "1"})
        assert api.call("POST", "/sandbox/compact", query={"revision": "1"}) == {}
        for query in ({}, {"revision": "new"}):
            with pytest.raises(ApiError, match="revision"):
                api.call("POST", "/sandbox/compact", query=query)


def test_only_the_sandboxs_own_authority_vouches_for_it(tmp_path: Path) -> None:
    access.make(tmp_path / "other")
    with served(tmp_path / "one") as kubeconfig, Client.from_kubeconfig(kubeconfig) as api:
        stranger = Client(api.access.server, ca_file=tmp_path / "other" / access.AUTHORITY)
        with stranger, pytest.raises(ssl.SSLError):
            stranger.get("/version")
