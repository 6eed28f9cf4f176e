"""Processes that hold memory of stand-in cards, without a driver around the store.

fake_store_driver.c links native/fakegpu's store and obeys one command per line.
"""

from __future__ import annotations

import functools
import os
import select
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Self

from native import build
from tests.native import building

HERE = Path(__file__).parent
FAKEGPU = build.SOURCES / "fakegpu"


def compile_driver(target: Path, command: tuple[str, ...], *flags: str) -> Path:
    sources = [*FAKEGPU.glob("store*.c"), *FAKEGPU.glob("faults*.c")]
    build.zig(build.own_arch()).run(
        target.name,
        [
            *(*command, "-O1", "-g", *flags, *build.LANGUAGE, *build.WARNINGS),
            *("-I", str(build.SOURCES / "include"), "-I", str(FAKEGPU)),
            *(str(source) for source in (HERE / "fake_store_driver.c", *sources)),
            *("-lpthread", "-o", str(target)),
        ],
    )
    return target


@functools.cache
def current_driver() -> Path:
    """Build the driver as the libraries are built, once for all tests."""
    target = build.ROOT / "build" / "fake-store-driver"
    target.parent.mkdir(exist_ok=True)
    fresh = target.with_name(f".{target.name}.{os.getpid()}")
    return compile_driver(fresh, build.zig(build.own_arch()).command).replace(target)


UNSHARE = ("unshare", "--pid", "--fork", "--mount", "--mount-proc", "--kill-child")


@functools.cache
def can_unshare() -> bool:
    """Tell whether this machine and user may make pid namespaces."""
    if shutil.which(UNSHARE[0]) is None:
        return False
    return subprocess.run([*UNSHARE, "true"], capture_output=True, check=False).returncode == 0


class Holder:
    """A running driver. `ask` sends a command and gives its answer."""

    def __init__(
        self,
        program: Path,
        node: Path,
        environment: Mapping[str, str] | None = None,
        wrapper: tuple[str, ...] = (),
    ) -> None:
        kept = {name: value for name, value in os.environ.items() if "_VISIBLE_" not in name}
        self._popen = subprocess.Popen(
            [*wrapper, str(program)],
            env={**kept, "FAKEGPU_DIR": str(node), **(environment or {})},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            bufsize=1,
        )
        self.pid = self._popen.pid
        assert self.answer() == "ready"

    def tell(self, command: str) -> None:
        assert self._popen.stdin is not None
        self._popen.stdin.write(f"{command}\n")

    def answer(self) -> str:
        assert self._popen.stdout is not None
        line = self._popen.stdout.readline()
        assert line.endswith("\n"), f"ended with {self._popen.wait()}"
        return line.rstrip("\n")

    def has_answer(self, seconds: float) -> bool:
        assert self._popen.stdout is not None
        return bool(select.select([self._popen.stdout], [], [], seconds)[0])

    def ask(self, command: str) -> str:
        self.tell(command)
        return self.answer()

    def kill(self) -> None:
        self._popen.kill()
        self._popen.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
        for pipe in (self._popen.stdin, self._popen.stdout):
            if pipe is not None:
                pipe.close()


def sanitized_driver(kind: building.Kind, target: Path) -> tuple[Path, building.Sanitized]:
    """Build the driver instrumented, as building.py does the libraries."""
    made = building.sanitized(kind)
    flags = {"address": "-fsanitize=address,undefined", "thread": "-fsanitize=thread"}
    return compile_driver(target, ("gcc",), flags[kind]), made
