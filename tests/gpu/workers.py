"""Processes that use the GPU for a runner, with libvgpu.so or without.

A worker is tests/gpu/work.py in a process of its own: one JSON question per line, one answer. The
runner itself never has a CUDA context and never a preload, so it can be the judge.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tests.gpu.driver import CudaError

ROOT = Path(__file__).resolve().parents[2]
# So that a foreign package called `tests` in the interpreter's site-packages cannot hide ours.
START = (
    "import sys, types; tests = types.ModuleType('tests'); tests.__path__ = [sys.argv.pop(1)];"
    "sys.modules['tests'] = tests; import runpy;"
    "runpy.run_module(sys.argv.pop(1), run_name='__main__', alter_sys=True)"
)


class WorkerError(Exception):
    """The worker died, did not answer in time, or broke on something that is no CUDA error."""


def module_command(python: str, module: str, *arguments: str, site: bool) -> list[str]:
    """Return the command that runs a module of this folder under any Python."""
    options = [] if site else ["-S"]
    return [python, *options, "-c", START, str(ROOT / "tests"), module, *arguments]


class Worker:
    """One process; with `torch_python` it is torch_work.py under that interpreter."""

    def __init__(self, env: dict[str, str] | None = None, torch_python: str | None = None) -> None:
        ours, theirs = socket.socketpair()
        module = "tests.gpu.torch_work" if torch_python else "tests.gpu.work"
        python = torch_python or sys.executable
        end = str(theirs.fileno())
        self._stderr = tempfile.TemporaryFile()  # noqa: SIM115  closed with the worker
        self.descriptors = ours
        self.process = subprocess.Popen(
            module_command(python, module, end, site=torch_python is not None),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._stderr,
            cwd=ROOT,
            env={**os.environ, **(env or {})},
            pass_fds=[theirs.fileno()],
        )
        theirs.close()
        self._rest = b""

    @property
    def pid(self) -> int:
        return self.process.pid

    def post(self, action: str, *arguments: Any, **named: Any) -> None:
        """Ask without waiting for the answer."""
        assert self.process.stdin is not None
        line = json.dumps({"do": action, "args": arguments, "named": named})
        try:
            self.process.stdin.write(line.encode() + b"\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            raise WorkerError(f"{action}: {self._death()}") from None

    def answer(self, action: str = "", timeout: float = 30) -> Any:
        line = self._line(action, time.monotonic() + timeout)
        answer = json.loads(line)
        if "code" in answer:
            raise CudaError(answer["code"], answer["function"])
        if "error" in answer:
            raise WorkerError(f"{action}: {answer['error']}")
        return answer["ok"]

    def ask(self, action: str, *arguments: Any, timeout: float = 30, **named: Any) -> Any:
        self.post(action, *arguments, **named)
        return self.answer(action, timeout)

    def _line(self, action: str, end: float) -> bytes:
        assert self.process.stdout is not None
        while b"\n" not in self._rest:
            left = end - time.monotonic()
            if left <= 0 or not select.select([self.process.stdout], [], [], left)[0]:
                raise WorkerError(f"{action}: no answer in time")
            more = os.read(self.process.stdout.fileno(), 65536)
            if not more:
                raise WorkerError(f"{action}: {self._death()}")
            self._rest += more
        line, self._rest = self._rest.split(b"\n", 1)
        return line

    def _death(self) -> str:
        self.process.wait(timeout=10)
        self._stderr.seek(0)
        return f"exit {self.process.returncode}: {self._stderr.read()[-300:].decode()}"

    def send_descriptor(self, descriptor: int) -> None:
        """Hand a file descriptor over and close it here; the worker takes it with `take`."""
        socket.send_fds(self.descriptors, [b"f"], [descriptor])
        os.close(descriptor)

    def receive_descriptor(self) -> int:
        self.descriptors.settimeout(10)
        return socket.recv_fds(self.descriptors, 1, 1)[1][0]

    def wait_for_word(self, timeout: float) -> None:
        """Wait until the worker says that it has begun what takes forever."""
        self.descriptors.settimeout(timeout)
        if not self.descriptors.recv(1):
            raise WorkerError("died before it began")

    def kill(self) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGKILL)
        self.close()

    def close(self) -> None:
        """End the worker, at once if it does not go by itself."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.close()
        try:
            self.process.wait(timeout=20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait(timeout=20)
        self.process.stdout.close()
        self._stderr.close()
        self.descriptors.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is None:
            self.close()
        else:
            self.kill()
