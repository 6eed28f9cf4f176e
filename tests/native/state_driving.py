"""Processes of a container, as libvgpu's limits and state see them.

state_driver.c links these parts and obeys one command per line. It looks for its files beside
itself, so every test gets its own copy in its own folder: that folder is the container.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from hami.wire import policy_file
from hami.wire.file_layout import PROCESS_ENTRY, PROCESS_USAGE, STATE, STATE_CARD, Layout
from hami.wire.shares import Share
from native import build

HERE = Path(__file__).parent
PARTS = (
    *("limits", "mirror", "places", "policy_file"),
    *("state", "state_file", "state_sweep", "test_points"),
)
SOURCES = [build.SOURCES / "libvgpu" / f"{part}.c" for part in PARTS]
UUID = "GPU-00000000-0000-0000-0000-00000000000a"


def compile_driver(target: Path, command: tuple[str, ...], *flags: str) -> Path:
    build.zig(build.own_arch()).run(
        target.name,
        [
            *(*command, "-O1", "-g", "-DVGPU_BESIDE", "-DVGPU_TEST_POINTS", *flags),
            *(*build.LANGUAGE, *build.WARNINGS),
            *("-I", str(build.SOURCES / "include"), "-I", str(build.SOURCES / "libvgpu")),
            *(str(source) for source in (HERE / "state_driver.c", *SOURCES)),
            *("-ldl", "-lpthread", "-o", str(target)),
        ],
    )
    return target


def policy(
    generation: int = 1, memory: int = 4 << 30, *, cores: int = 0, context_bytes: int = 0
) -> bytes:
    share = Share.from_limits(UUID, memory_bytes=memory, cores=cores)
    return policy_file.encode(
        policy_file.Policy(
            generation=generation, shares=(share,), context_bytes={UUID: context_bytes}
        )
    )


class Process:
    """A running driver. `tell` sends a command and gives its answer."""

    def __init__(self, command: list[str], environment: Mapping[str, str]) -> None:
        self._popen = subprocess.Popen(
            command,
            env=dict(environment),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            bufsize=1,
        )
        self.pid = self._popen.pid
        assert self.read() == "ready"

    def read(self) -> str:
        """Give the next answer: of a command that was sent, not told."""
        assert self._popen.stdout is not None
        return self._popen.stdout.readline().removesuffix("\n")

    def send(self, command: str) -> None:
        assert self._popen.stdin is not None
        self._popen.stdin.write(command + "\n")

    def tell(self, command: str) -> str:
        self.send(command)
        return self.read()

    def ask(self, command: str) -> int:
        return int(self.tell(command))

    def kill(self) -> None:
        self._popen.kill()
        self.wait()

    def kill_only_this(self) -> None:
        """Kill it while children of it live on, who still have its output."""
        self._popen.kill()
        self._popen.wait()

    def wait(self) -> int:
        """Wait for its end; what it wrote to stderr is a mistake, it lives in others' programs."""
        _, wrote = self._popen.communicate()
        assert wrote == ""
        return self._popen.returncode

    def finish(self) -> None:
        if self._popen.poll() is None:
            assert self._popen.stdin is not None
            self._popen.stdin.close()
            self._popen.stdin = None
        self.wait()


@dataclass
class Container:
    """A folder with the driver in it, and the processes that run there."""

    folder: Path
    driver: Path
    wrapper: tuple[str, ...] = ()
    environment: dict[str, str] = field(default_factory=dict)
    _processes: list[Process] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.folder.mkdir(exist_ok=True)
        shutil.copy(self.driver, self.program)
        self.environment["CUDA_DEVICE_MEMORY_SHARED_CACHE"] = str(self.mirror)

    @property
    def program(self) -> Path:
        return self.folder / "driver"

    @property
    def mirror(self) -> Path:
        return self.folder / "region"

    @property
    def state(self) -> Path:
        """The state file of a container without an agent."""
        return self.folder / "region.state"

    def start(self, *through: str, **environment: str) -> Process:
        """Start a process, by way of another command if `through` names one."""
        command = [*through, *self.wrapper, str(self.program)]
        path = {"PATH": os.environ["PATH"]}
        process = Process(command, {**path, **self.environment, **environment})
        self._processes.append(process)
        return process

    def grant(self, data: bytes) -> None:
        """Write the policy as the agent does."""
        (self.folder / "policy").mkdir(exist_ok=True)
        elsewhere = self.folder / "policy.new"
        elsewhere.write_bytes(data)
        elsewhere.rename(self.folder / "policy/policy")

    def used(self, device: int = 0) -> int:
        """Read a total from the file."""
        row = STATE_CARD.size * device + STATE.places["devices"][0]
        return int(STATE_CARD.unpack(self.state.read_bytes(), row)["used"])

    def slot(self, index: int) -> dict[str, int | bytes]:
        return PROCESS_ENTRY.unpack(self.state.read_bytes(), slot_at(index))

    def write(self, offset: int, data: bytes) -> None:
        with self.state.open("r+b") as file:
            file.seek(offset)
            file.write(data)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._processes:
            process.finish()


def slot_at(index: int) -> int:
    return STATE.places["slots"][0] + index * PROCESS_ENTRY.size


def usage_at(slot: int, device: int, name: str) -> int:
    inside = (
        PROCESS_ENTRY.places["usage"][0]
        + device * PROCESS_USAGE.size
        + PROCESS_USAGE.places[name][0]
    )
    return slot_at(slot) + inside


def field_at(layout: Layout, name: str) -> int:
    return layout.places[name][0]
