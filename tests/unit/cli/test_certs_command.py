"""`hami certs`: from the command line to the cluster, and every wrong usage."""

from __future__ import annotations

import asyncio
import base64
import pathlib
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from hami.cli import main
from hami.installation import tls_secret
from tests.scripted_api.server import ScriptedApi
from tests.unit.kube import kubeconfigs

NAMESPACE = "--namespace=kube-system"
TLS = ["--tls-secret=hami-tls", "--hosts=hami-webhook.kube-system.svc,127.0.0.1"]
GRANT = "--grant-key-secret=hami-grant-key"
WEBHOOK = "--webhook=hami-webhook"


@pytest_asyncio.fixture
async def api(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[ScriptedApi]:
    monkeypatch.setattr(tls_secret, "SETTLE_S", 0.0)
    async with ScriptedApi() as serving:
        yield serving


@pytest.fixture
def config(api: ScriptedApi, tmp_path: pathlib.Path) -> str:
    return kubeconfigs.write(tmp_path / "kubeconfig", cluster={"server": api.url})


async def run(capsys: pytest.CaptureFixture[str], config: str, *words: str) -> tuple[int, str, str]:
    """Run the command in a thread; the server answers in this one."""
    flags = [NAMESPACE, f"--kubeconfig={config}"]
    code = await asyncio.to_thread(main.main, ["certs", *words, *flags])
    printed = capsys.readouterr()
    return code, printed.out, printed.err


def entry(api: ScriptedApi, secret: str, name: str) -> bytes:
    found = api.find("secrets", secret, "kube-system")
    assert found is not None
    return base64.b64decode(found["data"][name])


def hook(api: ScriptedApi) -> dict[str, Any]:
    found = api.find("mutatingwebhookconfigurations", "hami-webhook")
    assert found is not None
    only: dict[str, Any] = found["webhooks"][0]
    return only


def put_hook(api: ScriptedApi) -> None:
    hooks = [
        {"name": "vgpu.hami.io", "failurePolicy": "Fail", "clientConfig": {"url": "https://a"}}
    ]
    meta = {"name": "hami-webhook"}
    api.put({"kind": "MutatingWebhookConfiguration", "metadata": meta, "webhooks": hooks})


async def test_an_installation_gets_its_secrets_and_its_trust(
    capsys: pytest.CaptureFixture[str], api: ScriptedApi, config: str
) -> None:
    code, out, err = await run(capsys, config, "create", *TLS, WEBHOOK, GRANT)
    assert (code, err) == (0, "")
    made, key = out.splitlines()
    assert made.startswith(
        "Secret kube-system/hami-tls: created, for hami-webhook.kube-system.svc, 127.0.0.1 until 20"
    )
    assert key.startswith("Secret kube-system/hami-grant-key: created, key ")
    assert len(entry(api, "hami-grant-key", "current")) == 32
    put_hook(api)
    code, _, err = await run(capsys, config, "patch", TLS[0], WEBHOOK)
    assert (code, err) == (0, "")
    trusted = base64.b64decode(hook(api)["clientConfig"]["caBundle"])
    assert trusted == entry(api, "hami-tls", "ca.crt")
    assert hook(api)["failurePolicy"] == "Fail"


async def test_a_second_run_changes_nothing(
    capsys: pytest.CaptureFixture[str], api: ScriptedApi, config: str
) -> None:
    await run(capsys, config, "create", *TLS, WEBHOOK, GRANT)
    before = api.objects("secrets")
    code, out, _ = await run(capsys, config, "create", *TLS, WEBHOOK, GRANT)
    assert code == 0
    assert out.count(": kept, ") == 2
    assert api.objects("secrets") == before


async def test_new_hosts_are_trusted_before_they_are_served(
    capsys: pytest.CaptureFixture[str], api: ScriptedApi, config: str
) -> None:
    await run(capsys, config, "create", *TLS)
    put_hook(api)
    code, _, _ = await run(capsys, config, "create", TLS[0], "--hosts=other.svc", WEBHOOK)
    assert code == 0
    changes = [request.path.split("/")[-2] for request in api.sent("PUT")]
    assert changes == ["mutatingwebhookconfigurations", "secrets"]


async def test_the_lifetime_is_the_users(
    capsys: pytest.CaptureFixture[str], api: ScriptedApi, config: str
) -> None:
    code, out, _ = await run(capsys, config, "create", *TLS, "--lifetime=876000h")
    assert code == 0
    year = out.rpartition("until ")[2].partition("-")[0]
    assert year.startswith("21")


async def test_another_key_signs_after_a_rotation(
    capsys: pytest.CaptureFixture[str], api: ScriptedApi, config: str
) -> None:
    await run(capsys, config, "create", GRANT)
    before = entry(api, "hami-grant-key", "current")
    code, out, err = await run(capsys, config, "rotate-grant-key", GRANT, "--wait=0s")
    assert (code, err) == (0, "")
    assert entry(api, "hami-grant-key", "previous") == before
    assert entry(api, "hami-grant-key", "current") != before
    assert len(out.splitlines()) == 2


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["create"], 2, "nothing to create; add --tls-secret=NAME --hosts=HOSTS, or --grant-"),
        (["create", "--grant-signing-secret=s"], 2, "a signing key has a public key; give both"),
        (["create", "--tls-secret=t"], 2, "--tls-secret needs the hosts of the certificate"),
        (["create", GRANT, "--hosts=a"], 2, "--hosts is about a certificate; add --tls-secret"),
        (["create", GRANT, WEBHOOK], 2, "--webhook is about a certificate; add --tls-secret"),
        (["create", TLS[0], "--hosts=a b"], 2, "--hosts: 'a b' is neither a host name nor"),
        (["create", *TLS, "--lifetime=10"], 2, "--lifetime: '10' is not a duration"),
        (["create", *TLS, "--lifetime=5m"], 2, "--lifetime: '5m' must be from 1h to 876000h"),
        (["create", *TLS, "--lifetime=-1h"], 2, "--lifetime: '-1h' must be from 1h"),
        (["patch", TLS[0]], 2, "the following arguments are required: --webhook"),
        (["patch", WEBHOOK], 2, "the following arguments are required: --tls-secret"),
        (["rotate-grant-key"], 2, "nothing to exchange; add --grant-signing-secret=NAME"),
        (["rotate-grant-key", GRANT, "--wait=-1s"], 2, "--wait: '-1s' is negative"),
        (["rotate-grant-key", GRANT], 1, "Secret kube-system/hami-grant-key: does not exist"),
        (["create", GRANT, "--context=none"], 2, "none"),
    ],
)
async def test_what_prevents_it_is_one_line_and_a_code(
    capsys: pytest.CaptureFixture[str],
    api: ScriptedApi,
    config: str,
    *,
    words: list[str],
    code: int,
    message: str,
) -> None:
    found, out, err = await run(capsys, config, *words)
    assert (found, out) == (code, "")
    assert err.startswith(f"hami certs {words[0]}: ")
    assert message in err
    assert err.count("\n") == 1
    assert api.objects("secrets") == []


async def test_the_namespace_is_never_guessed(capsys: pytest.CaptureFixture[str]) -> None:
    for command in ("create", "patch", "rotate-grant-key"):
        assert main.main(["certs", command, GRANT]) == 2
        assert "required: --namespace" in capsys.readouterr().err


async def test_what_the_server_refuses_is_reported_with_who_asked(
    capsys: pytest.CaptureFixture[str], api: ScriptedApi, config: str
) -> None:
    api.fault(method="POST", path="/secrets", status=403, reason="Forbidden", message="no rights")
    code, _, err = await run(capsys, config, "create", GRANT)
    assert code == 1
    assert err == f"hami certs create: {config}, context 'here': 403 Forbidden: no rights\n"


@pytest.mark.parametrize("command", ["create", "patch", "rotate-grant-key"])
def test_help_shows_every_flag(capsys: pytest.CaptureFixture[str], command: str) -> None:
    assert main.main(["certs", command, "--help"]) == 0
    reply = capsys.readouterr().out
    assert {"--namespace", "--kubeconfig", "--context"} <= set(reply.split())
    assert "Exit code 0" in reply
