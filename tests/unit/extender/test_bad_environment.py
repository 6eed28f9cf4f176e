"""`hami scheduler` where it cannot work: how it ends, or why it waits, and what it says."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import pathlib
import secrets
import signal
import socket
import sys
from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.scripted_api.server import ScriptedApi
from tests.unit.extender import rig
from tests.unit.kube import kubeconfigs
from tests.unit.serving import servers


class Process:
    """A real scheduler process, its stderr read as it comes."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self.lines: list[str] = []
        self._reading = asyncio.create_task(self._read())

    async def _read(self) -> None:
        assert self._process.stderr is not None
        async for line in self._process.stderr:
            self.lines.append(line.decode().rstrip("\n"))

    @property
    def running(self) -> bool:
        return self._process.returncode is None

    async def ended(self) -> int:
        code = await asyncio.wait_for(self._process.wait(), 30)
        await self._reading
        return code

    async def stop(self) -> int:
        if self.running:
            self._process.send_signal(signal.SIGTERM)
        return await self.ended()

    def kill(self) -> None:
        if self.running:
            self._process.kill()

    def logged(self, message: str) -> list[dict[str, Any]]:
        """Return the log records with this message; every line but the last must be one."""
        records = [json.loads(line) for line in self.lines if line.startswith("{")]
        return [record for record in records if record["message"] == message]


@contextlib.asynccontextmanager
async def process(*flags: str) -> AsyncIterator[Process]:
    environment = {"PATH": os.environ["PATH"], "HOME": "/nowhere"}
    made = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "hami", "scheduler", *flags),
        env=environment,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
    )
    started = Process(made)
    try:
        yield started
    finally:
        started.kill()
        await started.ended()


def own_address() -> str:
    """Return a loopback address that nobody else has in use."""
    return f"127.{1 + secrets.randbelow(254)}.{secrets.randbelow(255)}.{1 + secrets.randbelow(254)}"


@pytest.fixture
def kubeconfig(tmp_path: pathlib.Path) -> str:
    """Name a server where nobody listens; enough for those who end before they ask."""
    return kubeconfigs.write(tmp_path / "config", cluster={"server": "http://127.0.0.1:1"})


async def fails(*flags: str) -> tuple[int, str]:
    """Return the exit code and the last line, which is the only one not in JSON."""
    async with process(*flags) as started:
        code = await started.ended()
    assert [line for line in started.lines if not line.startswith("{")] == started.lines[-1:]
    assert started.logged("settings")
    return code, started.lines[-1]


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
    assert line.startswith(f"hami scheduler: grant keys: {missing}/current does not exist; ")
    assert "mount the Secret" in line
    assert "--grant-key-dir=" in line


@pytest.mark.parametrize("flag", ["http_bind", "metrics-bind-address"])
async def test_a_busy_port(kubeconfig: str, flag: str) -> None:
    host = own_address()
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


async def test_an_expired_token_is_told_and_waited_out(tmp_path: pathlib.Path) -> None:
    host = own_address()

    async def readyz() -> tuple[int, bytes]:
        async with servers.connected(8080, host=host) as connection:
            status, _, told = await connection.ask("GET", "/readyz")
            return status, told

    async with ScriptedApi() as api:
        api.put(rig.node("a"))
        api.tokens = {"new"}
        config = kubeconfigs.write(
            tmp_path / "config", cluster={"server": api.url}, user={"token": "old"}
        )
        async with process(
            "--grant-key-dir=",
            f"--kubeconfig={config}",
            f"--http_bind={host}:8080",
            "--metrics-bind-address=",
        ) as started:
            await rig.eventually(lambda: bool(started.logged("list failed")), 30)
            status, told = await readyz()
            assert status == 503
            assert b"[-] caches: the caches of " in told
            assert b"not filled yet" in told
            assert started.running
            error = started.logged("list failed")[0]["error"]
            assert error.startswith("401 Unauthorized: ")
            assert "does not accept our credentials (expired or revoked?)" in error
            assert f"renew those of {config}, context 'here'" in error
            api.tokens.add("old")
            async with asyncio.timeout(30):
                while (await readyz())[0] != 200:
                    await asyncio.sleep(0.05)
            assert await started.stop() == 0
            assert started.logged("stopped")
