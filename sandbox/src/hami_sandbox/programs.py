"""Keep the programs of a sandbox running, and end them all.

A program that ends is restarted, after a delay that doubles. None outlives us: each ends with our
process (`hami_sandbox.leash`), and the containers, which they start as daemons, hold the read end
of a pipe, the lifeline, that closes with us. `close` returns when no process is left: orphans
become our children, and we wait for them.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from hami_sandbox import leash, processes
from hami_sandbox.runtime import isolation, kernel

_log = logging.getLogger(__name__)

#: The variable that names the lifeline's file descriptor.
LIFELINE = "HAMI_SANDBOX_LIFELINE"

_FIRST_RESTART_S = 0.2
_LONGEST_RESTART_S = 5.0
#: After so long a run the restart delay starts again.
_STEADY_S = 10.0
_STOP_S = 3.0
_ORPHANS_S = 5.0
_SHOWN_LINES = 5
#: Variables that programs get from our environment; others could change what they do.
_KEPT = (
    *("PATH", "HOME", "LANG", "LC_ALL", "TMPDIR", "PYTHONPATH", "PYTHONDONTWRITEBYTECODE"),
    isolation.VARIABLE,
)


class Program:
    """A supervised program: a killed one restarts; a stopped one stays stopped until `start`."""

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        env: Mapping[str, str],
        log: Path,
        lifeline: int,
    ) -> None:
        self.name = name
        self.log = log
        #: How often it ended by itself or was killed.
        self.restarts = 0
        self._command = tuple(command)
        self._env = dict(env)
        self._lifeline = lifeline
        self._process: asyncio.subprocess.Process | None = None
        self._keeping: asyncio.Task[None] | None = None
        self._started = asyncio.Event()

    @property
    def pid(self) -> int | None:
        """The process that runs now; None between two starts."""
        process = self._process
        return process.pid if process is not None and process.returncode is None else None

    def kill(self, number: int = signal.SIGKILL) -> int | None:
        """Send a signal; return the process that it went to."""
        pid = self.pid
        if pid is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)
        return pid

    async def start(self) -> None:
        """Start it, and restart it from now on."""
        if self._keeping is None:
            self._started.clear()
            self._keeping = asyncio.create_task(self._keep())
        await self._started.wait()

    async def stop(self) -> None:
        """End it by SIGTERM, or else SIGKILL; it is not restarted."""
        if self._keeping is None:
            return
        self._keeping.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._keeping
        self._keeping = None
        process = self._process
        if process is None or process.returncode is not None:
            return
        self.kill(signal.SIGTERM)
        try:
            async with asyncio.timeout(_STOP_S):
                await process.wait()
        except TimeoutError:
            _log.warning("program ignored SIGTERM, killing it", extra={"program": self.name})
            self.kill(signal.SIGKILL)
            await process.wait()

    def last_lines(self, count: int = _SHOWN_LINES) -> list[str]:
        """Return the end of its log, for an error message."""
        try:
            return self.log.read_text(errors="replace").splitlines()[-count:]
        except FileNotFoundError:
            return []

    async def _keep(self) -> None:
        delay = _FIRST_RESTART_S
        while True:
            begin = time.monotonic()
            process = await self._spawn()
            self._process = process
            self._started.set()
            code = await process.wait()
            self.restarts += 1
            if time.monotonic() - begin >= _STEADY_S:
                delay = _FIRST_RESTART_S
            _log.info(
                "program ended, restarting it",
                extra={"program": self.name, "code": code, "after": delay},
            )
            await asyncio.sleep(delay)
            delay = min(2 * delay, _LONGEST_RESTART_S)

    async def _spawn(self) -> asyncio.subprocess.Process:
        command = [sys.executable, "-I", "-S", leash.__file__, str(os.getpid()), *self._command]
        with self.log.open("ab") as log:
            return await asyncio.create_subprocess_exec(
                *command,
                env={**self._env, LIFELINE: str(self._lifeline)},
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=(self._lifeline,),
                process_group=0,  # a terminal's Ctrl-C is for us; we end programs in order
            )


class Programs:
    """All programs of a sandbox, by name."""

    def __init__(self, logs: Path) -> None:
        self._logs = logs
        logs.mkdir(parents=True, exist_ok=True)
        self._programs: dict[str, Program] = {}
        self._lifeline, self._our_end = os.pipe()
        kernel.become_subreaper()

    def __getitem__(self, name: str) -> Program:
        return self._programs[name]

    @property
    def all(self) -> Mapping[str, Program]:
        return self._programs

    async def start(
        self, name: str, command: Sequence[str], env: Mapping[str, str] | None = None
    ) -> Program:
        """Start a program that lives as long as the sandbox."""
        log = self._logs / f"{name.replace('/', '-')}.log"
        made = Program(name, command, env or environment(), log, self._lifeline)
        self._programs[name] = made
        await made.start()
        return made

    async def close(self) -> None:
        """End all of them, and everything that they left running."""
        first, *others = self._programs.values() or (None,)
        await asyncio.gather(*(program.stop() for program in others))
        if first is not None:  # the others need it to the end: agents write to the API server
            await first.stop()
        mark = f"{LIFELINE}={self._lifeline}"
        known = await asyncio.to_thread(processes.marked, mark)
        if self._our_end >= 0:
            os.close(self._our_end)  # containers end now
            os.close(self._lifeline)
            self._our_end = -1
        await asyncio.to_thread(processes.await_end, _ORPHANS_S, mark, known)


def python(*arguments: str) -> list[str]:
    """Return the command of a Python program of ours."""
    return [sys.executable, *arguments]


def environment(**more: str) -> dict[str, str]:
    """Return a program's environment, with variables of its own."""
    return {name: os.environ[name] for name in _KEPT if name in os.environ} | more


def free(count: int) -> list[int]:
    """Return free ports of loopback; all are held together, so they differ."""
    with contextlib.ExitStack() as stack:
        ports = []
        for _ in range(count):
            held = stack.enter_context(socket.socket())
            held.bind(("127.0.0.1", 0))
            ports.append(int(held.getsockname()[1]))
        return ports
