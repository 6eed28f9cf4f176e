"""`hami monitor` as a process, with state files of CUDA programs.

The state files are real, of CUDA programs on stand-in GPUs. The processes are in no pod, so the
tests write a /proc of their own, as a container runtime would have it.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path

from hami.node.layout import NodeLayout
from hami_sandbox import gpus
from tests import processes
from tests.native.container import Container
from tests.native.probing import Probe
from tests.processes import Process
from tests.scripted_api.server import ScriptedApi
from tests.unit.kube import kubeconfigs
from tests.unit.monitor import nodes
from tests.unit.monitor.nodes import Series
from tests.unit.serving import servers

PORT = 9394
NODE = "n1"


class Machine:
    """A GPU node: its folders, its processes, and the monitor on it."""

    def __init__(self, folder: Path, cards: Path) -> None:
        self.layout: NodeLayout = nodes.layout(folder)
        self.proc = folder / "proc"
        self.proc.mkdir()
        self.host = processes.own_address()
        self._folder = folder
        self._cards = cards
        self.process: Process

    def contain(self, container: Container, name: str, limit: int) -> None:
        """Let the agent have prepared a container; its state is the one that libvgpu writes."""
        state = nodes.prepare(self.layout, name, {container.node.cards[0].uuid: limit})
        state.unlink()
        os.link(container.state_path, state)

    def place(self, probe: Probe, name: str = "") -> None:
        """Say where a process is: in a pod's container, or in none."""
        folder = self.proc / str(probe.pid)
        folder.mkdir()
        for each in ("stat", "status"):
            shutil.copyfile(f"/proc/{probe.pid}/{each}", folder / each)
        uid = nodes.uid_of(name)
        group = f"/kubepods/burstable/pod{uid}/{'0a' * 32}" if name else "/user.slice"
        (folder / "cgroup").write_text(f"0::{group}\n")
        root = f"/usr/local/vgpu/tokens/{nodes.allocation_of(name)}" if name else "/"
        (folder / "mountinfo").write_text(f"9 1 8:1 {root} /x ro - ext4 /dev/sda rw\n")

    @contextlib.asynccontextmanager
    async def monitored(self, api: ScriptedApi, *flags: str) -> AsyncIterator[None]:
        config = kubeconfigs.write(self._folder / "config", cluster={"server": api.url})
        made = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "hami", "monitor"),
            f"--node-name={NODE}",
            f"--hook-path={self.layout.hook_path}",
            f"--state-dir={self.layout.state_dir}",
            f"--run-dir={self.layout.run_dir}",
            f"--proc-dir={self.proc}",
            f"--metrics-bind-address={self.host}:{PORT}",
            f"--kubeconfig={config}",
            *flags,
            env={
                "PATH": os.environ["PATH"],
                "HOME": "/nowhere",
                "FAKEGPU_DIR": str(self._cards),
                "LD_LIBRARY_PATH": str(gpus.driver_folder()),
            },
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,
        )
        self.process = Process(made)
        try:
            yield
        finally:
            self.process.kill()
            await self.process.ended()

    async def get(self, path: str) -> tuple[int, str]:
        async with servers.connected(PORT, host=self.host) as connection:
            status, _, body = await connection.ask("GET", path)
            return status, body.decode()

    async def shown(self) -> Series:
        status, text = await self.get("/metrics")
        assert status == 200
        return nodes.series(text)

    async def eventually(self, name: str, expected: list[float], **labels: str) -> None:
        """Wait until a metric has these values; the error after too long shows the others."""
        await self._until(name, lambda found: found == expected, f"not {expected}", **labels)

    async def at_least(self, name: str, count: float, **labels: str) -> None:
        """Wait until a counter has come so far."""
        await self._until(name, lambda found: found[:1] >= [count], f"below {count}", **labels)

    async def _until(
        self, name: str, check: Callable[[list[float]], bool], wrong: str, **labels: str
    ) -> None:
        found: list[float] = []
        try:
            async with asyncio.timeout(processes.PATIENCE):
                while True:
                    with contextlib.suppress(OSError):
                        found = nodes.values(await self.shown(), name, **labels)
                        if check(found):
                            return
                    assert self.process.running, self.process.lines[-10:]
                    await asyncio.sleep(0.1)
        except TimeoutError:
            raise AssertionError(f"{name} is {found}, {wrong}") from None

    def resident(self) -> int:
        """Return the bytes of memory that it has now."""
        pages = int(Path(f"/proc/{self.process.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")
