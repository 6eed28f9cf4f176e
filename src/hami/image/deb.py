"""Read a .deb in Python: an `ar` archive with a tar of files in it.

So unpacking needs no dpkg, and `tree` decides what is written, not the options of a tool. Debian
packs with xz (older packages with gzip or bzip2), which Python reads; Ubuntu's zstd needs
`dpkg-deb`.
"""

from __future__ import annotations

import io
import lzma
import shutil
import subprocess
import tarfile
import zlib
from collections.abc import Callable
from functools import partial
from pathlib import Path

from hami.image import tree
from hami.image.errors import ImageError

_MAGIC = b"!<arch>\n"
_HEADER = 60
_END = b"`\n"
_OPENERS = {
    "data.tar": partial(tarfile.open, mode="r:"),
    "data.tar.gz": partial(tarfile.open, mode="r:gz"),
    "data.tar.bz2": partial(tarfile.open, mode="r:bz2"),
    "data.tar.xz": partial(tarfile.open, mode="r:xz"),
    "data.tar.lzma": partial(tarfile.open, mode="r:xz"),
}
_DAMAGE = (tarfile.TarError, lzma.LZMAError, zlib.error, EOFError, OSError, ValueError)


def extract(archive: Path, root: Path, *, skip: Callable[[str], bool]) -> None:
    """Write the files of the package `archive` below `root`; none of its scripts is run."""
    try:
        name, content = _files(archive)
        with _OPENERS[name](fileobj=io.BytesIO(content)) as stream:
            tree.extract(stream, root, what=archive.name, skip=skip)
            while stream.fileobj.read(1 << 20):
                pass  # to the end: the checksums are there
    except _DAMAGE as error:
        raise ImageError(
            f"package {archive.name}",
            f"cannot be unpacked ({error})",
            "if it is damaged, delete it from the cache folder and it is fetched again",
        ) from error


def _files(archive: Path) -> tuple[str, bytes]:
    """Return the name and content of the tar of files, compressed in a way that Python reads."""
    found = []
    for name, content in _members(archive):
        found.append(name)
        if name in _OPENERS:
            return name, content
        if name == "data.tar.zst":
            return "data.tar", _dpkg(archive)
    raise ImageError(
        f"package {archive.name}", f"has no data.tar.{{xz,gz,bz2,zst}}, only {', '.join(found)}"
    )


def _members(archive: Path) -> list[tuple[str, bytes]]:
    raw = archive.read_bytes()
    if not raw.startswith(_MAGIC):
        raise ValueError("it is no ar archive")
    members, at = [], len(_MAGIC)
    while at < len(raw):
        header = raw[at : at + _HEADER]
        if len(header) < _HEADER or not header.endswith(_END):
            raise ValueError("an ar header is damaged")
        start, size = at + _HEADER, int(header[48:58])
        if size < 0 or start + size > len(raw):
            raise ValueError("it is cut short")
        name = header[:16].decode("ascii").rstrip().rstrip("/")
        members.append((name, raw[start : start + size]))
        at = start + size + size % 2
    return members


def _dpkg(archive: Path) -> bytes:
    tool = shutil.which("dpkg-deb")
    if tool is None:
        raise ImageError(
            f"package {archive.name}",
            "is packed with zstd, which only dpkg-deb reads here",
            "install dpkg, or use Debian's packages",
        )
    done = subprocess.run(  # noqa: S603 - a fixed program, the path is ours
        [tool, "--fsys-tarfile", str(archive)], capture_output=True, check=False
    )
    if done.returncode:
        raise ValueError(done.stderr.decode(errors="replace").strip())
    return done.stdout
