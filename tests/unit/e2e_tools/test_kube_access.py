"""Kubeconfigs as the tests' own client reads and writes them."""

from __future__ import annotations

import base64
import pathlib

import pytest
import yaml

from tests.kubeapi import access
from tests.kubeapi.access import Access, KubeconfigError


def kubeconfig(path: pathlib.Path, cluster: object, user: object, **top: object) -> pathlib.Path:
    config = {
        "current-context": "one",
        "contexts": [
            {"name": "one", "context": {"cluster": "c", "user": "u"}},
            {"name": "two", "context": {"cluster": "other", "user": "u"}},
        ],
        "clusters": [
            {"name": "c", "cluster": cluster},
            {"name": "other", "cluster": {"server": "https://other:1"}},
        ],
        "users": [{"name": "u", "user": user}],
        **top,
    }
    file = path / "config"
    file.write_text(yaml.safe_dump(config))
    return file


def test_a_kubeconfig_gives_inline_data_files_beside_it_and_tokens(tmp_path: pathlib.Path) -> None:
    (tmp_path / "ca.pem").write_text("the ca")
    (tmp_path / "token").write_text("from a file\n")
    inline = base64.b64encode(b"the certificate").decode()
    user = {"client-certificate-data": inline, "client-key": "ca.pem", "tokenFile": "token"}
    cluster = {"server": "https://h:6443", "certificate-authority": "ca.pem"}
    file = kubeconfig(tmp_path, cluster, user)
    assert access.read(file) == Access(
        "https://h:6443", "the ca", "from a file", "the certificate", "the ca"
    )
    assert access.read(file, "two").server == "https://other:1"


def test_a_kubeconfig_may_forgo_verification(tmp_path: pathlib.Path) -> None:
    cluster = {"server": "https://h", "insecure-skip-tls-verify": True}
    found = access.read(kubeconfig(tmp_path, cluster, {"token": "t"}))
    assert (found.verify, found.tls().check_hostname) == (False, False)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"current-context": None}, "no current-context"),
        ({"current-context": "three"}, "no context named 'three'"),
        ({"clusters": []}, "no cluster named 'c'"),
        ({"users": [{"name": "u", "user": {"exec": {}}}]}, "from a program"),
    ],
)
def test_a_kubeconfig_that_cannot_be_used_says_why(
    tmp_path: pathlib.Path, changes: dict[str, object], words: str
) -> None:
    file = kubeconfig(tmp_path, {"server": "https://h"}, {}, **changes)
    with pytest.raises(KubeconfigError, match=words):
        access.read(file)


def test_what_is_written_can_be_read_and_only_by_its_owner(tmp_path: pathlib.Path) -> None:
    whole = Access("https://h", "ca", "t", "cert", "key", verify=False)
    access.write(whole, tmp_path / "config")
    assert access.read(tmp_path / "config") == whole
    assert (tmp_path / "config").stat().st_mode & 0o777 == 0o600
