"""A runtime in a folder of its own, and containers to run in it."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from hami_sandbox import processes
from hami_sandbox.runtime.runtime import Runtime
from hami_sandbox.runtime.spec import ContainerSpec, ContainerState, Phase
from hami_sandbox.runtime.states import living
from tests.unit.kube.following import PATIENCE_S, until

UID = "9d0e6a52-0c3e-4f4a-9f0e-5f1d1c2b3a40"
_LINE = re.compile(
    r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{9}Z (?P<stream>stdout|stderr) (?P<tag>[PF]) (?P<text>.*)"
)


class Bench:
    """`lifeline` is the end that the sandbox would hold."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.cdi = folder / "cdi"
        self.cdi.mkdir(parents=True)
        self.reading_end, self.lifeline = os.pipe()
        self._numbers = itertools.count()
        self.runtime = self.new_runtime()

    def new_runtime(self) -> Runtime:
        """Be a kubelet that was started again."""
        self.runtime = Runtime(self.folder / "rt", cdi_dirs=[self.cdi], lifeline=self.reading_end)
        return self.runtime

    def spec(self, *argv: str, **more: Any) -> ContainerSpec:
        # Processes are found by this id on the whole machine: another worker must not have it.
        container = f"c{next(self._numbers)}-{os.getpid()}"
        fields = {
            "id": container,
            "pod_uid": UID,
            "namespace": "team",
            "pod_name": "pod",
            "name": "main",
            "log": str(self.folder / "logs" / f"{container}.log"),
        }
        return ContainerSpec(argv=argv, **(fields | more))

    async def start(self, *argv: str, **more: Any) -> str:
        spec = self.spec(*argv, **more)
        await self.runtime.create(spec)
        await self.runtime.start(spec.id)
        return spec.id

    async def run(self, *argv: str, **more: Any) -> ContainerState:
        return await self.ended(await self.start(*argv, **more))

    async def ended(self, container: str) -> ContainerState:
        async with asyncio.timeout(PATIENCE_S):
            seen = 0
            while (state := self.runtime.state(container)).phase is not Phase.EXITED:
                seen = await self.runtime.wait_change(seen)
        return state

    def lines(self, container: str | ContainerState, stream: str = "stdout") -> list[str]:
        """Return what a container has said; every line of the log must be one."""
        if isinstance(container, ContainerState):
            container = container.spec.id
        text = Path(self.runtime.state(container).spec.log).read_text()
        found = [_LINE.fullmatch(line) for line in text.splitlines()]
        assert all(found), text
        return [each["text"] for each in found if each and each["stream"] == stream]

    async def said(self, container: str, number: int = 1) -> list[str]:
        """Wait until a container has said so many lines."""
        await until(lambda: len(self.lines(container)) >= number)
        return self.lines(container)

    def cut_lifeline(self) -> None:
        if self.lifeline >= 0:
            os.close(self.lifeline)
            self.lifeline = -1

    async def all_ended(self) -> None:
        await until(lambda: not living(self.folder / "rt"))

    async def close(self) -> None:
        self.cut_lifeline()
        await self.all_ended()
        await self.runtime.close()
        os.close(self.reading_end)


@contextlib.asynccontextmanager
async def opened(folder: Path) -> AsyncIterator[Bench]:
    bench = Bench(folder)
    try:
        yield bench
    finally:
        await bench.close()


def is_alive(pid: int) -> bool:
    """Tell whether a process runs; one that only waits to be buried does not."""
    try:
        state = processes.stat(processes.PROC / str(pid))[processes.STATE]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state not in b"ZX"


async def gone(pid: int) -> None:
    await until(lambda: not is_alive(pid))
