"""A running probe: one CUDA program under a test's command (native/probe).

Every question has a deadline, so whatever hangs is a failing test that says which command hung.
"""

from __future__ import annotations

import os
import selectors
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

SECONDS = 60.0  # until a command counts as hanging; sanitized builds on two busy cores are slow
OUT_OF_MEMORY = 2
MIB = 1 << 20
GIB = 1 << 30


class HangingError(AssertionError):
    """The probe did not answer in time."""


class DiedError(AssertionError):
    """The probe ended instead of answering."""


@dataclass(frozen=True)
class Answer:
    """One line of a probe."""

    text: str

    @property
    def words(self) -> list[str]:
        return self.text.split()[1:]

    @property
    def ok(self) -> bool:
        return self.text == "ok" or self.text.startswith("ok ")

    @property
    def code(self) -> int:
        """The driver's result: 0, or what the failing function returned."""
        if self.ok:
            return 0
        assert self.text.startswith("error "), self.text
        return int(self.words[0])

    @property
    def numbers(self) -> list[int]:
        return [int(word) for word in self.words]


@dataclass(frozen=True)
class Filled:
    """What `fill` got before it was refused."""

    count: int
    bytes: int
    code: int
    function: str


@dataclass(frozen=True)
class Memory:
    """A card as NVML shows it."""

    total: int
    free: int
    used: int
    total_v2: int
    reserved_v2: int
    free_v2: int
    used_v2: int
    processes: dict[int, int]


class Probe:
    """A process that was started with `command`; its stderr goes to a file of its own."""

    def __init__(self, command: Sequence[str], env: Mapping[str, str], noise: Path) -> None:
        self._noise = noise
        with noise.open("wb") as errors:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                env=dict(env),
                bufsize=0,
            )
        self._heard = b""
        self.killed = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    @property
    def noise(self) -> str:
        """What it wrote to stderr: nothing, if all is well."""
        return self._noise.read_text(errors="replace")

    def tell(self, line: str) -> None:
        """Send a command without waiting for its answer."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(line.encode() + b"\n")
        except BrokenPipeError:
            raise self._died(line) from None

    def hear(self, line: str = "", seconds: float = SECONDS) -> Answer:
        """Wait for the next answer."""
        assert self._process.stdout is not None
        deadline = time.monotonic() + seconds
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdout, selectors.EVENT_READ)
            while b"\n" not in self._heard:
                if not selector.select(max(deadline - time.monotonic(), 0)):
                    self.kill()
                    raise HangingError(f"no answer to {line!r} in {seconds} s; {self.noise}")
                more = os.read(self._process.stdout.fileno(), 65536)
                if not more:
                    raise self._died(line)
                self._heard += more
        text, self._heard = self._heard.split(b"\n", 1)
        return Answer(text.decode())

    def ask(self, line: str) -> Answer:
        """Send a command and wait for its answer, whatever it is."""
        self.tell(line)
        return self.hear(line)

    def do(self, line: str) -> list[str]:
        """Send a command that must succeed; give its values."""
        answer = self.ask(line)
        assert answer.ok, f"{line!r} was answered by {answer.text!r}"
        return answer.words

    def number(self, line: str) -> int:
        return int(self.do(line)[0])

    def refused(self, line: str) -> None:
        """Send a command that must fail for lack of memory, and for nothing else."""
        answer = self.ask(line)
        assert not answer.ok, f"{line!r} succeeded: {answer.text!r}"
        assert answer.code == OUT_OF_MEMORY, f"{line!r} was answered by {answer.text!r}"

    def start(self, device: int = 0) -> Self:
        """Initialise CUDA and make a device's primary context current."""
        self.do("init")
        self.do(f"device {device}")
        return self

    def fill(self, kind: str, size: int, most: int | None = None) -> Filled:
        """Take pieces until one is refused."""
        words = self.do(f"fill {kind} {size}" + ("" if most is None else f" {most}"))
        return Filled(int(words[0]), int(words[1]), int(words[2]), words[3])

    def memory(self, index: int = 0) -> Memory:
        """Ask NVML, in this process, for a card by NVML's index."""
        words = self.do(f"nvml {index}")
        total, free, used, total_v2, reserved_v2, free_v2, used_v2 = map(int, words[:7])
        pairs = (word.split(":") for word in words[7:])
        return Memory(
            total=total,
            free=free,
            used=used,
            total_v2=total_v2,
            reserved_v2=reserved_v2,
            free_v2=free_v2,
            used_v2=used_v2,
            processes={int(pid): int(had) for pid, had in pairs},
        )

    def info(self) -> tuple[int, int]:
        """Give what cuMemGetInfo says: free, total."""
        free, total = self.do("info")
        return int(free), int(total)

    def kill(self) -> None:
        self.killed = True
        self._process.send_signal(signal.SIGKILL)
        self.wait()

    def wait(self) -> int:
        """Wait for its end, which must be near; give its status (negative: the signal)."""
        try:
            status = self._process.wait(SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
            raise HangingError(f"the probe does not end; {self.noise}") from None
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                stream.close()
        return status

    def end(self) -> None:
        """Let it end by itself; it must do so quietly."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        status = self.wait()
        assert (status, self.noise) == (0, "")

    def _died(self, line: str) -> DiedError:
        status = self.wait()
        return DiedError(f"ended with {status} instead of answering {line!r}; {self.noise}")
