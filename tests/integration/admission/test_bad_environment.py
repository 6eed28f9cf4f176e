"""`hami webhook` in a bad environment: how it ends, or why it waits."""

from __future__ import annotations

import pathlib
import socket

import pytest

from tests import processes
from tests.integration.admission import webhooks
from tests.scripted_api.server import ScriptedApi
from tests.unit.kube import kubeconfigs


@pytest.fixture
def kubeconfig(tmp_path: pathlib.Path) -> str:
    """Name a server that does not listen; enough for a process that ends before it asks."""
    return kubeconfigs.write(tmp_path / "config", cluster={"server": "http://127.0.0.1:1"})


@pytest.mark.parametrize(
    ("flags", "reply"),
    [
        (["--mig-fallback=off"], ["--mig-fallback: 'off'", "write one of type, available"]),
        (["--mig-falback=type"], ["no flag --mig-falback", "did you mean --mig-fallback?"]),
        (["--cert_file=/tls/crt"], ["--key_file", "add --key_file=FILE"]),
        (["--http_bind=nonsense"], ["--http_bind: 'nonsense'", "write HOST:PORT"]),
        (["--shutdown-delay=soon"], ["--shutdown-delay: 'soon'", "write for example"]),
        (["--otlp-endpoint=collector"], ["--otlp-endpoint: 'collector'", "http://collector:4318"]),
        (["--scheduler-name=x"], ["no flag --scheduler-name"]),
        (["now"], ["now"]),
    ],
)
async def test_wrong_flags_end_it_with_the_remedy(flags: list[str], reply: list[str]) -> None:
    code, line = await processes.fails("webhook", *flags)
    assert code == 2
    assert line.startswith("hami webhook: ")
    assert [part for part in reply if part not in line] == []


async def test_an_unreadable_kubeconfig(tmp_path: pathlib.Path) -> None:
    missing = tmp_path / "config"
    code, line = await processes.fails("webhook", f"--kubeconfig={missing}")
    assert code == 2
    assert line.startswith(f"hami webhook: {missing}: cannot be read: No such file")


async def test_a_certificate_that_is_not_there_yet(tmp_path: pathlib.Path, kubeconfig: str) -> None:
    files = {"cert_file": tmp_path / "crt", "key_file": tmp_path / "key"}
    flags = [f"--{flag}={path}" for flag, path in files.items()]
    code, line = await processes.fails("webhook", f"--kubeconfig={kubeconfig}", *flags)
    assert code == 2
    assert line.startswith(
        f"hami webhook: certificate {files['cert_file']} cannot be read: No such"
    )
    assert line.endswith("; mount the Secret or correct the path")


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        (
            "chains: [[3g.40gb, 2g.20gb], [2g.20gb, 1g.10gb]]",
            "'2g.20gb' ends one chain, and goes on",
        ),
        ("chains: []", "must be a list of at least one chain"),
        ("chains: [[", "not valid YAML"),
    ],
)
async def test_a_file_of_chains_that_is_none(
    tmp_path: pathlib.Path, kubeconfig: str, text: str, rule: str
) -> None:
    chains = tmp_path / "chains.yaml"
    chains.write_text(text)
    code, line = await processes.fails(
        "webhook", f"--kubeconfig={kubeconfig}", f"--mig-fallback-file={chains}"
    )
    assert code == 2
    assert line.startswith(f"hami webhook: {chains}: ")
    assert rule in line


@pytest.mark.parametrize("flag", ["http_bind", "metrics-bind-address"])
async def test_a_busy_port(kubeconfig: str, flag: str) -> None:
    host = processes.own_address()
    ports = {"http_bind": webhooks.PORT, "metrics-bind-address": webhooks.METRICS_PORT}
    with socket.socket() as taken:
        taken.bind((host, ports[flag]))
        taken.listen()
        binds = [f"--{name}={host}:{port}" for name, port in ports.items()]
        code, line = await processes.fails("webhook", f"--kubeconfig={kubeconfig}", *binds)
    assert code == 2
    assert line == (
        f"hami webhook: cannot listen on {host}:{ports[flag]}: Address already in use; "
        "choose an address of this machine and a port that is free"
    )


async def test_missing_rights_are_reported_and_waited_for(tmp_path: pathlib.Path) -> None:
    async with ScriptedApi() as api:
        api.put(webhooks.node("a", {"nvidia.com/gpu": "8"}))
        forbidden = api.fault(
            path="/nodes", status=403, reason="Forbidden", message="cannot list nodes", times=None
        )
        async with webhooks.serving(api, tmp_path) as webhook:
            reply = await webhook.process.logged("list failed")
            assert reply["kind"] == "nodes"
            assert "403" in reply["error"]
            assert "cannot list nodes" in reply["error"]
            assert (await webhook.get("/readyz"))[0] == 503
            api.faults.remove(forbidden)
            await webhook.ready()
