"""`hami demo` as users run it: it ends by itself in a pipe, else by Ctrl-C.

However it ends, no process and no file of it is left.
"""

from __future__ import annotations

import contextlib
import os
import pty
import select
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

_COMMAND = [sys.executable, "-m", "hami", "demo", "--node=gpu-a=1xT4"]
_PATIENCE_S = 120


@pytest.fixture
def folder() -> Iterator[Path]:
    """Name a folder for the cluster: a short one, as sockets lie below it."""
    with tempfile.TemporaryDirectory(prefix="hami-d", dir="/tmp") as above:
        yield Path(above) / "c"


def left_of(folder: Path) -> list[str]:
    """Name the processes that know the folder, except for us."""
    found = []
    for each in Path("/proc").iterdir():
        if not each.name.isdigit() or each.name == str(os.getpid()):
            continue
        with contextlib.suppress(OSError):
            known = (each / "cmdline").read_bytes() + (each / "environ").read_bytes()
            if os.fsencode(folder) in known:
                found.append(f"{each.name}: {known[:200]!r}")
    return found


def test_with_a_pipe_it_tells_how_every_example_ended(folder: Path) -> None:
    done = subprocess.run(
        [*_COMMAND, f"--folder={folder}", "--example=share-by-memory", "--example=quota"],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        timeout=_PATIENCE_S,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "CUDA_ERROR_OUT_OF_MEMORY" in done.stdout
    assert "2 of 2 examples ended as their texts say" in done.stdout
    assert "node gpu-a: 1xT4, binding late" in done.stdout
    assert not folder.exists()
    assert not left_of(folder)


def test_on_a_terminal_it_stays_until_ctrl_c_and_leaves_nothing(folder: Path) -> None:
    ours, theirs = pty.openpty()
    with subprocess.Popen(
        [*_COMMAND, f"--folder={folder}", "--example=never-fits"],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
        preexec_fn=_take_terminal,  # noqa: PLW1509 - no thread runs between fork and exec
    ) as process:
        os.close(theirs)
        try:
            until(ours, "The cluster stays up")
            assert (folder / "kubeconfig").exists()
            os.write(ours, b"\x03")
            until(ours, "no process and no file is left behind")
            assert process.wait(timeout=_PATIENCE_S) == 0
        finally:
            process.kill()
            os.close(ours)
    assert not folder.exists()
    assert not left_of(folder)


def _take_terminal() -> None:
    """Make standard input the terminal of this session: Ctrl-C in it becomes a signal."""
    os.close(os.open(os.ttyname(0), os.O_RDWR))


def until(terminal: int, words: str) -> None:
    """Read what is shown until these words have come."""
    shown = b""
    end = time.monotonic() + _PATIENCE_S
    while words.encode() not in shown:
        ready, _, _ = select.select([terminal], [], [], max(end - time.monotonic(), 0))
        assert ready, f"{words!r} did not come; {shown[-2000:]!r}"
        shown += os.read(terminal, 65536)
