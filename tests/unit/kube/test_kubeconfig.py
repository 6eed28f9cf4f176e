"""Finding the server: the file that counts, and errors of unusable ones."""

from __future__ import annotations

import os
import pathlib
from typing import Any

import pytest

from hami.kube import access, errors
from tests.unit.kube import kubeconfigs

CLUSTER = {"server": "https://c:1"}


@pytest.fixture(autouse=True)
def _nowhere(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("KUBECONFIG", "KUBERNETES_SERVICE_HOST"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))


def test_the_given_file_comes_before_the_environment_and_that_before_home(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "home/.kube").mkdir(parents=True)
    found = []
    kubeconfigs.write(tmp_path / "home/.kube/config", cluster={"server": "https://home:1"})
    found.append(access.find().server)
    path = kubeconfigs.write(tmp_path / "e", cluster={"server": "https://environment:1"})
    monkeypatch.setenv("KUBECONFIG", path)
    found.append(access.find().server)
    given = kubeconfigs.write(tmp_path / "g", cluster={"server": "https://given:1"})
    found.append(access.find(given).server)
    assert found == ["https://home:1", "https://environment:1", "https://given:1"]


def test_nothing_anywhere_is_reported_with_all_places() -> None:
    with pytest.raises(access.AccessError) as raised:
        access.find()
    for place in ("--kubeconfig", "$KUBECONFIG", "service account", "~/.kube/config"):
        assert place in str(raised.value)


def test_of_several_files_the_first_that_names_a_thing_counts(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = tmp_path / "first"
    kubeconfigs.write(first, contexts=None, clusters=None, users=None)
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub/token").write_text("from the second folder")
    second = kubeconfigs.write(tmp_path / "sub/second", user={"tokenFile": "token"})
    third = kubeconfigs.write(tmp_path / "third", cluster={"server": "https://third:1"})
    missing = str(tmp_path / "missing")
    monkeypatch.setenv("KUBECONFIG", os.pathsep.join([missing, str(first), second, third]))
    assert access.find().server == CLUSTER["server"]


async def test_paths_in_a_file_start_at_the_file(tmp_path: pathlib.Path) -> None:
    (tmp_path / "token").write_text(" t \n")
    path = kubeconfigs.write(
        tmp_path / "c", cluster={"server": "http://c:1"}, user={"tokenFile": "token"}
    )
    assert (await access.find(path).credentials()).identity.token == "t"  # noqa: S105 - no real one


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"current-context": ""}, ["no current-context", "'here'", "use-context"]),
        ({"current-context": "there"}, ["no context named 'there'", "'here'"]),
        ({"clusters": []}, ["no cluster named 'c'", "none"]),
        ({"users": None}, ["no user named 'u'"]),
        ({"contexts": [{"name": "here"}]}, ["context 'here' names no cluster"]),
        ({"cluster": {"proxy-url": "http://p:1", **CLUSTER}}, ["http://p:1", "not supported"]),
        ({"cluster": {"server": ""}}, ["cluster 'c' has no server"]),
        ({"cluster": {"server": "c:1"}}, ["'c:1'", "https://HOST:PORT"]),
        ({"cluster": {"server": 5}}, ["is not a kubeconfig", "server"]),
        ({"cluster": {"certificate-authority": "no", **CLUSTER}}, ["no", "cannot be read"]),
        ({"cluster": {"certificate-authority-data": "%", **CLUSTER}}, ["authority-data", "base64"]),
        ({"user": {"tokenFile": "no"}}, ["no", "cannot be read"]),
        ({"user": {"client-certificate-data": "eA=="}}, ["only one of client-certificate"]),
        ({"user": {"username": "me", "password": "p"}}, ["'username'", "not supported"]),
        ({"user": {"auth-provider": {"name": "gcp"}}}, ["'auth-provider'"]),
        ({"user": {"exec": {"command": "x", "apiVersion": "v0"}}}, ["'v0'", "v1beta1"]),
        (
            {
                "user": {
                    "exec": {
                        "command": "x",
                        "apiVersion": "client.authentication.k8s.io/v1",
                        "interactiveMode": "Always",
                    }
                }
            },
            ["interactiveMode"],
        ),
    ],
    ids=lambda value: str(value)[:60] if isinstance(value, dict) else "",
)
def test_what_cannot_be_used_is_reported_with_file_and_remedy(
    tmp_path: pathlib.Path, changes: dict[str, Any], message: list[str]
) -> None:
    path = kubeconfigs.write(tmp_path / "c", **changes)
    with pytest.raises(errors.AccessError) as raised:
        access.find(path)
    for part in (str(tmp_path), *message):
        assert part in str(raised.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: [", "is not valid YAML"),
        ("just words", "is not a kubeconfig"),
        ("clusters: 7", "clusters"),
        ("", "no current-context"),
        ("{" * 1200, "YAML"),
    ],
    ids=["broken", "text", "type", "empty", "deep"],
)
def test_a_file_of_something_else_is_reported_as_such(
    tmp_path: pathlib.Path, text: str, message: str
) -> None:
    path = tmp_path / "config"
    path.write_text(text)
    with pytest.raises(errors.AccessError) as raised:
        access.find(str(path))
    assert str(path) in str(raised.value)
    assert message in str(raised.value)


def test_a_file_that_cannot_be_read_is_named(tmp_path: pathlib.Path) -> None:
    for path in (tmp_path / "missing", tmp_path):
        with pytest.raises(errors.AccessError, match=f"{path}: cannot be read: .*may read it"):
            access.find(str(path))


async def test_a_key_that_does_not_fit_its_certificate_is_reported(tmp_path: pathlib.Path) -> None:
    user = {"client-certificate-data": "eA==", "client-key-data": "eA=="}
    found = access.find(kubeconfigs.write(tmp_path / "c", user=user))
    with pytest.raises(errors.AccessError, match=r"certificates cannot be used.*PEM"):
        await found.credentials()


@pytest.mark.parametrize("text", ["", " \n", "no PEM"])
async def test_an_authority_without_certificates_does_not_mean_that_all_are_trusted(
    tmp_path: pathlib.Path, text: str
) -> None:
    (tmp_path / "ca").write_text(text)
    cluster = {"certificate-authority": "ca", **CLUSTER}
    found = access.find(kubeconfigs.write(tmp_path / "c", cluster=cluster))
    with pytest.raises(errors.AccessError, match="certificates cannot be used"):
        await found.credentials()


async def test_a_token_with_a_line_break_in_it_is_reported(tmp_path: pathlib.Path) -> None:
    found = access.find(kubeconfigs.write(tmp_path / "c", user={"token": "a\nb"}))
    with pytest.raises(errors.AccessError, match="characters that no token has"):
        await found.credentials()


def test_in_a_pod_the_namespace_is_the_pods(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.96.0.1")
    (tmp_path / "token").write_text("t")
    (tmp_path / "ca.crt").write_text("c")
    assert access.load(str(tmp_path)).namespace == "default"
    (tmp_path / "namespace").write_text("team\n")
    assert access.load(str(tmp_path)).namespace == "team"
