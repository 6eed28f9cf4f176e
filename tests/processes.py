"""Real processes of ours, under a test: started, listened to, and ended with it.

async with processes.running("webhook", f"--http_bind={host}:8443") as started:
    await started.logged("serving")
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
import pathlib
import secrets
import signal
import sys
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Any

#: Seconds after which a process counts as hanging.
PATIENCE = 60.0


class Process:
    """One of them, its stderr read as it comes."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self.lines: list[str] = []
        self._reading = asyncio.create_task(self._read())

    async def _read(self) -> None:
        assert self._process.stderr is not None
        async for line in self._process.stderr:
            self.lines.append(line.decode().rstrip("\n"))

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def running(self) -> bool:
        return self._process.returncode is None

    def mapped(self) -> str:
        """Return what the kernel says is in its memory: programs and libraries, by path."""
        return pathlib.Path(f"/proc/{self.pid}/maps").read_text(encoding="utf-8")

    def terminate(self) -> None:
        self._process.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        if self.running:
            self._process.kill()

    async def ended(self) -> int:
        """Return the exit code, once it has ended and all its output was read."""
        code = await asyncio.wait_for(self._process.wait(), PATIENCE)
        await self._reading
        return code

    async def stop(self) -> int:
        if self.running:
            self.terminate()
        return await self.ended()

    def records(self, message: str) -> list[dict[str, Any]]:
        """Return the log records with this message."""
        records = [json.loads(line) for line in self.lines if line.startswith("{")]
        return [record for record in records if record["message"] == message]

    async def logged(self, message: str) -> dict[str, Any]:
        """Wait for a log record with this message, and return the first one."""
        await eventually(lambda: bool(self.records(message)) or not self.running)
        found = self.records(message)
        assert found, f"it never logged {message!r}, but {self.lines[-10:]}"
        return found[0]


@contextlib.asynccontextmanager
async def running(
    *arguments: str, python: Sequence[str] = (), env: Mapping[str, str] | None = None
) -> AsyncIterator[Process]:
    """Start `hami ARGUMENTS` with nothing of our environment but `env`.

    `python` are Python's own flags.
    """
    made = await asyncio.create_subprocess_exec(
        *(sys.executable, *python, "-m", "hami", *arguments),
        env={"PATH": os.environ["PATH"], "HOME": "/nowhere", **(env or {})},
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


async def fails(*arguments: str) -> tuple[int, str]:
    """Return the exit code and the last output, after the log."""
    async with running(*arguments) as started:
        code = await started.ended()
    log = list(itertools.takewhile(lambda line: line.startswith("{"), started.lines))
    return code, "\n".join(started.lines[len(log) :])


async def eventually(check: Callable[[], bool]) -> None:
    """Wait until something is true; the loop goes on meanwhile."""
    async with asyncio.timeout(PATIENCE):
        while not check():
            await asyncio.sleep(0.01)


def own_address() -> str:
    """Return a loopback address that is not in use."""
    return f"127.{1 + secrets.randbelow(254)}.{secrets.randbelow(255)}.{1 + secrets.randbelow(254)}"
