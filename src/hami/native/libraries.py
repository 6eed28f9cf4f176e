"""Find compiled files: libvgpu and the probe here, the stand-in driver in hami_sandbox.

A wheel has those of its architecture in `<package>/lib`; in a checkout `make native` writes them to
`native/lib`. They are data here: nothing in this package loads them into its own process.
"""

from __future__ import annotations

import hashlib
import platform
from pathlib import Path

_PACKAGE = Path(__file__).parents[1]
#: What Python or Kubernetes calls an architecture, to its folder.
_ARCHITECTURES = {
    "x86_64": "x86_64",
    "amd64": "x86_64",
    "aarch64": "aarch64",
    "arm64": "aarch64",
}


class LibraryError(Exception):
    """A compiled library is not there; the message says what to do."""


def library(name: str, machine: str | None = None, *, package: Path = _PACKAGE) -> Path:
    """Return the path of `name` (libvgpu.so, fakegpu/libcuda.so.1) in a package, for `machine`.

    Without `machine` it is the one that this process runs on.
    """
    machine = platform.machine() if machine is None else machine
    if (arch := _ARCHITECTURES.get(machine)) is None:
        known = ", ".join(sorted(_ARCHITECTURES))
        raise LibraryError(f"machine {machine!r} is none of {known}: there is no {name} for it")
    folders = [package / "lib"]
    folders += [up / "native/lib" for up in package.parents if (up / "native/build.py").is_file()]
    for folder in folders:
        if (path := folder / arch / name).is_file():
            return path
    raise LibraryError(
        f"{folders[-1] / arch / name} is missing; in a checkout run make native, "
        f"else install the wheel of {package.name} for {arch}"
    )


def digest(path: Path) -> str:
    """Give the SHA-256 of a file in hex: tells whether a node has this very library."""
    with path.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()
