"""Hosts as a user writes them."""

from __future__ import annotations

import pytest

from hami.installation import pem
from hami.wire.errors import WireError


def test_names_and_addresses_come_once_and_in_their_usual_form() -> None:
    text = "Hami-Webhook.kube-system.svc, 127.0.0.1,,hami-webhook.kube-system.svc,FD00:0::1,*.a.svc"
    assert pem.parse(text, what="--hosts") == (
        "hami-webhook.kube-system.svc",
        "127.0.0.1",
        "fd00::1",
        "*.a.svc",
    )


@pytest.mark.parametrize(
    "word",
    [
        "a b",
        "https://a.svc",
        "a.svc:443",
        "-a.svc",
        "a..svc",
        "*",
        "a.*.svc",
        "999.1.1.1",
        "a_b.svc",
        "ä.svc",
        "a" * 64,
        ".".join(["abc"] * 70),
        "127.0.0.1/8",
    ],
)
def test_what_is_no_host_is_named(word: str) -> None:
    with pytest.raises(WireError, match=r"--hosts: .* is neither a host name nor an IP address"):
        pem.parse(f"a.svc,{word}", what="--hosts")


@pytest.mark.parametrize("text", ["", " , ,"])
def test_at_least_one_is_needed(text: str) -> None:
    with pytest.raises(WireError, match="names no host"):
        pem.parse(text, what="--hosts")
