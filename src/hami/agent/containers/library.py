"""libvgpu: find the compiled file, install it on the node by digest.

Containers run for weeks with the library that they were started with, so a new one is written to a
folder of its own and never replaces another. `prune` gets the digests that are still mounted, and
removes the others.

A wheel has the compiled files of its architecture in `<package>/lib`; in a checkout `make native`
writes them to `native/lib`. They are data here: this package never loads them into its own process.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import logging
import platform
import re
import shutil
from collections.abc import Collection
from pathlib import Path

from hami.agent.errors import AgentError
from hami.node import files
from hami.node.layout import NodeLayout

_log = logging.getLogger(__name__)

NAME = "libvgpu.so"
_DIGEST = re.compile(r"[0-9a-f]{64}")


class LibraryInstallError(AgentError):
    """The library cannot be installed on the node; says why and what to do."""


class Library:
    """libvgpu in a folder that is named after its content."""

    def __init__(self, layout: NodeLayout, source: Path) -> None:
        self._layout = layout
        self._source = source
        #: Empty before `install`.
        self.digest = ""

    @property
    def path(self) -> Path:
        """Return its path on the node."""
        assert self.digest, "install first"
        return library_path(self._layout, self.digest)

    def install(self) -> Path:
        """Write the library and the preload file where they are missing, and check both."""
        remedy = (
            "check --hook-path: it must be a folder on the node's disk that the agent may write"
        )
        try:
            content = self._source.read_bytes()
        except OSError as error:
            raise LibraryInstallError(
                f"library {self._source}",
                f"cannot be read: {error.strerror or error}",
                "in a checkout run make native, else install hami again",
            ) from error
        digest = hashlib.sha256(content).hexdigest()
        path = library_path(self._layout, digest)
        try:
            if not _holds(path, content):
                if path.exists():
                    _set_aside(path.parent)
                path.parent.mkdir(parents=True, exist_ok=True)
                files.write_atomic(path, content, mode=0o755, durable=True)
            self._write_preload()
            files.label_for_containers(path.parent, path, self._layout.preload)
            good = _holds(path, content)
        except OSError as error:
            raise LibraryInstallError(
                f"library {path}", f"cannot be written: {error.strerror or error}", remedy
            ) from error
        if not good:
            raise LibraryInstallError(
                f"library {path}", "is not what was written to it", "check the node's disk"
            )
        self.digest = digest
        return path

    def prune(self, in_use: Collection[str]) -> tuple[str, ...]:
        """Remove the libraries that are neither ours nor in use; return the removed digests."""
        removed = []
        for digest in installed(self._layout):
            if digest != self.digest and digest not in in_use:
                with contextlib.suppress(OSError):  # a leftover costs only its space
                    shutil.rmtree(library_path(self._layout, digest).parent)
                    removed.append(digest)
        return tuple(removed)

    def _write_preload(self) -> None:
        """Write one line: what the linker in the container loads before all else.

        Durable, because an empty file after a power cut would load nothing, and limit nothing.
        """
        content = f"{self._layout.inside / NAME}\n".encode()
        if not _holds(self._layout.preload, content):
            files.write_atomic(self._layout.preload, content, durable=True)


def library_path(layout: NodeLayout, digest: str) -> Path:
    return layout.libraries / digest / NAME


def installed(layout: NodeLayout) -> tuple[str, ...]:
    """Return the digests of all libraries on the node."""
    try:
        names = [path.name for path in layout.libraries.iterdir()]
    except FileNotFoundError:
        return ()
    return tuple(sorted(name for name in names if _DIGEST.fullmatch(name)))


def digest_of(layout: NodeLayout, host_path: str) -> str:
    """Return the digest of the library that a mount's source is; empty: it is no library."""
    path = Path(host_path)
    known = path.name == NAME and path.parent.parent == layout.libraries
    return path.parent.name if known and _DIGEST.fullmatch(path.parent.name) else ""


def _holds(path: Path, content: bytes) -> bool:
    try:
        return path.read_bytes() == content
    except FileNotFoundError:
        return False


def _set_aside(folder: Path) -> None:
    """Move a damaged library away; containers that mount it keep the file they have."""
    for number in itertools.count(1):
        aside = folder.with_name(f"{folder.name}.damaged-{number}")
        if not aside.exists():
            folder.rename(aside)
            _log.warning("set a damaged library aside", extra={"folder": str(aside)})
            return


_PACKAGE = Path(__file__).parents[2]
#: Names of architectures in Python and Kubernetes -> folder.
_ARCHITECTURES = {
    "x86_64": "x86_64",
    "amd64": "x86_64",
    "aarch64": "aarch64",
    "arm64": "aarch64",
}


class LibraryError(Exception):
    """A compiled library is missing; the message says what to do."""


def find_built(name: str, machine: str | None = None, *, package: Path = _PACKAGE) -> Path:
    """Return the path of `name` (libvgpu.so, fakegpu/libcuda.so.1) in a package, for `machine`.

    `machine` None: the one that this process runs on.
    """
    machine = platform.machine() if machine is None else machine
    if (arch := _ARCHITECTURES.get(machine)) is None:
        known = ", ".join(sorted(_ARCHITECTURES))
        raise LibraryError(
            f"machine {machine!r} is none of {known}: there is no {name} for it; run hami on one "
            "of those"
        )
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
    """Return the SHA-256 of a file in hexadecimal: it identifies a library on a node."""
    with path.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()
