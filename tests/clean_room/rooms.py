"""Rooms for tests: a fresh clone in a user's home, and commands in it."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import pty
import select
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from tests.clean_room import room
from tests.e2e.cluster import layout
from tests.e2e.parts import catalogue

CHECKOUT = "hami"
#: What says where packages come from, whom to trust, and how long to wait.
_PASSED_ON = ("PIP_", "UV_", "SSL_", "REQUESTS_CA_BUNDLE", "http_proxy", "https_proxy", "no_proxy")
_CHUNK = 65536


@dataclasses.dataclass(frozen=True)
class Done:
    code: int
    text: str
    #: Each line with the seconds since the command's start.
    lines: tuple[tuple[float, str], ...]

    def seconds_of(self, words: str) -> float:
        """Return when a line with these words came."""
        return next(seconds for seconds, line in self.lines if words in line)


class Room:
    """One user's home and /tmp, which live on from command to command."""

    def __init__(self, folder: Path) -> None:
        self._root = catalogue.provide(catalogue.clean_room_root())
        self._folder = folder
        self.home = folder / "home"
        self.tmp = folder / "tmp"
        self.home.mkdir()
        self.tmp.mkdir()
        self.tmp.chmod(0o1777)
        clone = f"git clone --quiet --no-hardlinks {layout.CHECKOUT} {CHECKOUT}"
        _shell(f"{clone} && chown -R {room.USER}:{room.USER} .", self.home)

    def command(self, command: Sequence[str], *, user_namespaces: bool) -> list[str]:
        return [
            *(sys.executable, "-m", "tests.clean_room.room"),
            *(str(self._root), str(self.home), str(self.tmp)),
            "yes" if user_namespaces else "no",
            *("env", "-C", f"{room.HOME}/{CHECKOUT}", *command),
        ]

    def run(self, *command: str, user_namespaces: bool, limit_s: float) -> Done:
        """Run a command without a terminal to its end, and note when each line came."""
        with _started(self.command(command, user_namespaces=user_namespaces)) as (process, output):
            return _read(process, output, limit_s)

    def interrupted(self, *command: str, user_namespaces: bool, limit_s: float, after: str) -> Done:
        """Run a command on a terminal, press Ctrl-C once it has shown some words."""
        with _started(self.command(command, user_namespaces=user_namespaces), terminal=True) as (
            process,
            output,
        ):
            return _read(process, output, limit_s, after=after)

    def left(self) -> list[str]:
        """Name what is in /tmp."""
        return sorted(path.name for path in self.tmp.iterdir())


def _shell(script: str, folder: Path) -> None:
    subprocess.run(["/bin/sh", "-ec", script], cwd=folder, check=True)


def _environment() -> dict[str, str]:
    passed = {key: value for key, value in os.environ.items() if key.startswith(_PASSED_ON)}
    return {
        "PATH": "/usr/local/bin:/usr/bin:/bin",
        "HOME": room.HOME,
        "LANG": "C.UTF-8",
        "PYTHONPATH": "",
        **passed,
    }


@contextlib.contextmanager
def _started(
    command: list[str], *, terminal: bool = False
) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    env = {**_environment(), **({"TERM": "xterm-256color"} if terminal else {})}
    ours, theirs = pty.openpty() if terminal else os.pipe()
    process = subprocess.Popen(
        command,
        cwd=layout.CHECKOUT,
        env=env,
        stdin=theirs if terminal else subprocess.DEVNULL,
        stdout=theirs,
        stderr=theirs,
    )
    os.close(theirs)
    try:
        yield process, ours
    finally:
        process.kill()
        process.wait()
        os.close(ours)


def _read(process: subprocess.Popen[bytes], output: int, limit_s: float, after: str = "") -> Done:
    begin = time.monotonic()
    text = ""
    lines: list[tuple[float, str]] = []
    pressed = not after
    while True:
        left = begin + limit_s - time.monotonic()
        if left <= 0:
            raise AssertionError(f"not over after {limit_s:.0f} s; it said:\n{text}")
        if not select.select([output], [], [], left)[0]:
            continue
        try:
            data = os.read(output, _CHUNK)
        except OSError:  # a terminal that nobody holds any more
            data = b""
        if not data:
            break
        told = data.decode(errors="replace")
        text += told
        lines += [(time.monotonic() - begin, line) for line in told.splitlines()]
        if not pressed and after in text:
            os.write(output, b"\x03")
            pressed = True
    return Done(process.wait(), text, tuple(lines))
