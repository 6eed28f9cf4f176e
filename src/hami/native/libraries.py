"""Where the compiled libraries lie: libvgpu for containers, the stand-in driver for the sandbox.

A wheel brings those of its architecture; in a checkout `make native` makes them (native/build.py).
They are data here: nothing in this package loads them into its own process.
"""

from __future__ import annotations

import hashlib
import platform
from pathlib import Path

_FOLDER = Path(__file__).parent / "lib"
#: What Python or Kubernetes calls an architecture, to its folder.
_ARCHITECTURES = {
    "x86_64": "x86_64",
    "amd64": "x86_64",
    "aarch64": "aarch64",
    "arm64": "aarch64",
}


class LibraryError(Exception):
    """A compiled library is not there; the message says what to do."""


def library(name: str, machine: str | None = None) -> Path:
    """Give the path of `name` (as in libvgpu.so, fakegpu/libcuda.so.1) for `machine`.

    Without `machine` it is the one that this process runs on.
    """
    machine = platform.machine() if machine is None else machine
    if (arch := _ARCHITECTURES.get(machine)) is None:
        known = ", ".join(sorted(_ARCHITECTURES))
        raise LibraryError(f"machine {machine!r} is none of {known}: there is no {name} for it")
    path = _FOLDER / arch / name
    if not path.is_file():
        raise LibraryError(
            f"{path} is not there; in a checkout run make native, "
            f"else install the wheel of hami for {arch}"
        )
    return path


def digest(path: Path) -> str:
    """Give the SHA-256 of a file in hex: tells whether a node has this very library."""
    with path.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()
