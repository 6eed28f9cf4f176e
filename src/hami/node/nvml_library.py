"""Finds the driver's NVML library and loads it, so that nvidia-ml-py finds it too.

nvidia-ml-py asks the linker for `libnvidia-ml.so.1` and nothing else. In our container the driver
lies elsewhere, below a driver root. But the linker takes a library that the process has already
for any other of the same soname: loading it once by its path is all that is needed.
"""

from __future__ import annotations

import ctypes
import platform
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

NAME = "libnvidia-ml.so.1"

#: What distributions call the architectures in their folders' names.
_TRIPLETS = {"x86_64": "x86_64-linux-gnu", "aarch64": "aarch64-linux-gnu"}
_MOST_LINKS = 16


class LibraryNotFoundError(Exception):
    """The library is not there or does not load; the message says where it was looked for."""


def folders(machine: str = "") -> tuple[str, ...]:
    """Name the folders below a driver root that drivers are installed in, likely ones first.

    Those of other architectures come last: a root may name its folders otherwise than we expect,
    and a library that does not fit is refused by the linker.
    """
    machine = machine or platform.machine()
    own = _TRIPLETS.get(machine, f"{machine}-linux-gnu")
    others = [triplet for triplet in _TRIPLETS.values() if triplet != own]
    return (
        f"usr/lib/{own}",
        "usr/lib64",
        "usr/lib",
        f"lib/{own}",
        "lib64",
        "lib",
        f"usr/lib/{own}/nvidia/current",
        "usr/local/nvidia/lib64",
        "home/kubernetes/bin/nvidia/lib64",
        "opt/nvidia/lib64",
        "",
        *(f"usr/lib/{triplet}" for triplet in others),
    )


def candidates(driver_root: str, machine: str = "") -> Iterator[Path]:
    """Give the library's files below a root, as they really lie, each once."""
    seen: set[Path] = set()
    root = Path(driver_root)
    for folder in folders(machine):
        found = _inside(root, PurePosixPath(folder) / NAME)
        if found is not None and found not in seen:
            seen.add(found)
            yield found


def load(driver_root: str = "") -> str:
    """Load the library; give its path, or its name where the linker found it."""
    if not driver_root or driver_root == "/":
        return _load_by_name()
    refused: list[str] = []
    for path in candidates(driver_root):
        try:
            ctypes.CDLL(str(path))
        except OSError as error:
            refused.append(f"{path} does not load ({error})")
        else:
            return str(path)
    if refused:
        raise LibraryNotFoundError("; ".join(refused))
    places = ", ".join(folder or "." for folder in folders())
    raise LibraryNotFoundError(f"there is no {NAME} below {driver_root} (looked in {places})")


def _load_by_name() -> str:
    try:
        ctypes.CDLL(NAME)
    except OSError as error:
        raise LibraryNotFoundError(f"the linker does not find {NAME} ({error})") from error
    return NAME


def _inside(root: Path, path: PurePosixPath) -> Path | None:
    """Follow symbolic links as a process with that root would; None: there is no such file.

    Distributions have links with absolute targets (/etc/alternatives/...), which seen from our own
    root lead nowhere, or to something else.
    """
    pending = list(reversed(path.parts))
    at = root
    links = 0
    while pending:
        part = pending.pop()
        if part == "..":
            at = at.parent if at != root else root
            continue
        step = at / part
        try:
            if not step.is_symlink():
                at = step
                continue
            target = PurePosixPath(step.readlink())
        except OSError:
            return None
        links += 1
        if links > _MOST_LINKS:
            return None
        if target.is_absolute():
            at = root
            target = target.relative_to("/")
        pending += reversed(target.parts)
    try:
        return at if at.is_file() else None
    except OSError:
        return None
