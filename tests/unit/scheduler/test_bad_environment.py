"""`hami scheduler` where it cannot work: exit, or waiting with a reason."""

from __future__ import annotations

import asyncio
import pathlib
import socket

import pytest

from tests import processes
from tests.scripted_api.server import ScriptedApi
from tests.unit.kube import kubeconfigs
from tests.unit.kube.following import PATIENCE_S
from tests.unit.scheduler import rig
from tests.unit.serving import servers


@pytest.fixture
def kubeconfig(tmp_path: pathlib.Path) -> str:
    """Name a server that does not answer; enough for a process that ends before it asks."""
    return kubeconfigs.write(tmp_path / "config", cluster={"server": "http://127.0.0.1:1"})


async def fails(*flags: str) -> tuple[int, str]:
    return await processes.fails("scheduler", *flags)


async def test_an_unreadable_kubeconfig(tmp_path: pathlib.Path) -> None:
    missing = tmp_path / "config"
    code, line = await fails("--grant-key-dir=", f"--kubeconfig={missing}")
    assert code == 2
    assert line.startswith(f"hami scheduler: {missing}: cannot be read: No such file")
    assert line.endswith("; check that it exists and that this user may read it")


async def test_a_kubeconfig_that_is_none(tmp_path: pathlib.Path) -> None:
    wrong = tmp_path / "config"
    wrong.write_text("clusters: [")
    code, line = await fails("--grant-key-dir=", f"--kubeconfig={wrong}")
    assert code == 2
    assert line.startswith(f"hami scheduler: {wrong}: is not valid YAML: ")


async def test_a_missing_folder_of_grant_keys(tmp_path: pathlib.Path, kubeconfig: str) -> None:
    missing = tmp_path / "keys"
    code, line = await fails(f"--grant-key-dir={missing}", f"--kubeconfig={kubeconfig}")
    assert code == 2
    files = f"{missing}/signing-current or {missing}/current"
    assert line.startswith(f"hami scheduler: grant keys: {files} does not exist; ")
    assert "mount the Secret" in line
    assert "--grant-key-dir=" in line


@pytest.mark.parametrize("flag", ["http_bind", "metrics-bind-address"])
async def test_a_busy_port(kubeconfig: str, flag: str) -> None:
    host = processes.own_address()
    ports = {"http_bind": 8080, "metrics-bind-address": 9395}
    with socket.socket() as taken:
        taken.bind((host, ports[flag]))
        taken.listen()
        binds = [f"--{name}={host}:{port}" for name, port in ports.items()]
        code, line = await fails("--grant-key-dir=", f"--kubeconfig={kubeconfig}", *binds)
    assert code == 2
    assert line.startswith("hami scheduler: ")
    assert f"{host}:{ports[flag]}" in line
    assert "in use" in line


async def test_an_expired_token_is_reported_and_waited_out(tmp_path: pathlib.Path) -> None:
    host = processes.own_address()

    async def readyz() -> tuple[int, bytes]:
        async with servers.connected(8080, host=host) as connection:
            status, _, body = await connection.ask("GET", "/readyz")
            return status, body

    async with ScriptedApi() as api:
        api.put(rig.node("a"))
        api.tokens = {"new"}
        config = kubeconfigs.write(
            tmp_path / "config", cluster={"server": api.url}, user={"token": "old"}
        )
        async with processes.running(
            "scheduler",
            "--grant-key-dir=",
            f"--kubeconfig={config}",
            f"--http_bind={host}:8080",
            "--metrics-bind-address=",
        ) as started:
            error = (await started.logged("list failed"))["error"]
            status, body = await readyz()
            assert status == 503
            assert b"[-] caches: the caches of " in body
            assert b"not filled yet" in body
            assert started.running
            assert error.startswith("401 Unauthorized: ")
            assert "does not accept our credentials (expired or revoked?)" in error
            assert f"renew those of {config}, context 'here'" in error
            api.tokens.add("old")
            async with asyncio.timeout(PATIENCE_S):
                while (await readyz())[0] != 200:
                    await asyncio.sleep(0.05)
            assert await started.stop() == 0
            assert started.records("stopped")
