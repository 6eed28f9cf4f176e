"""Libraries that a Linux program or library needs, read from the file itself.

A program in an image without its loader or one of its libraries fails only in a pod, and with a
message that names the wrong file. So it is checked when the image is built: `check_static` for
images of one binary, `check_libraries` for a whole root.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from hami.image.errors import ImageError

_MAGIC = b"\x7fELF\x02\x01"  # 64 bit, little-endian: amd64 and arm64
_MACHINES = {"amd64": 62, "arm64": 183}
_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
_SEGMENT = struct.Struct("<IIQQQQQQ")
_DYNAMIC = struct.Struct("<qQ")
_LOAD, _TABLE, _LOADER = 1, 2, 3  # kinds of segments
_END, _NEEDED, _STRINGS = 0, 1, 5  # tags of the dynamic table


@dataclass(frozen=True)
class Program:
    machine: int
    dynamic: bool
    needed: tuple[str, ...]


def read(path: Path) -> Program:
    """Read the headers of `path`."""
    try:
        data = path.read_bytes()
        if not data.startswith(_MAGIC):
            raise ImageError(f"binary {path}", "is no 64-bit Linux program")
        fields = _HEADER.unpack_from(data)
        machine, table, size, count = fields[2], fields[5], fields[9], fields[10]
        segments = [_SEGMENT.unpack_from(data, table + size * index) for index in range(count)]
        needed = tuple(_needed(data, segments))
    except (OSError, struct.error, StopIteration, ValueError) as error:
        raise ImageError(f"binary {path}", f"cannot be read ({error!r})") from error
    return Program(machine, any(kind == _LOADER for kind, *_ in segments), needed)


def _needed(data: bytes, segments: Sequence[Sequence[int]]) -> Iterator[str]:
    """Name the libraries in the dynamic table; its strings are at an address, not an offset."""
    for kind, _, offset, _, _, length, *_ in segments:
        if kind != _TABLE:
            continue
        entries = list(_DYNAMIC.iter_unpack(data[offset : offset + length]))
        entries = entries[: [tag for tag, _ in entries].index(_END)]
        address = next(value for tag, value in entries if tag == _STRINGS)
        strings = next(
            address - start + at
            for kind, _, at, start, _, filled, *_ in segments
            if kind == _LOAD and start <= address < start + filled
        )
        for tag, value in entries:
            if tag == _NEEDED:
                first = strings + value
                yield data[first : data.index(b"\0", first)].decode()


def check_static(binary: Path, architecture: str) -> None:
    """Refuse `binary` unless it runs on `architecture` in an empty root."""
    remedy = f"build it for {architecture} with CGO_ENABLED=0"
    program = read(binary)
    if program.machine != _MACHINES[architecture]:
        raise ImageError(f"binary {binary}", f"is not for {architecture}", remedy)
    if program.dynamic or program.needed:
        raise ImageError(f"binary {binary}", "is linked dynamically", remedy)


def check_libraries(roots: Sequence[Path]) -> None:
    """Refuse a root, given as its layers, if a library that a file needs is in none of them."""
    needed: dict[str, str] = {}
    present: set[str] = set()
    for root in roots:
        for path in sorted(root.rglob("*")):
            if ".so" in path.name:
                present.add(path.name)
            if path.is_file() and not path.is_symlink() and _is_elf(path):
                user = path.relative_to(root).as_posix()
                needed.update(dict.fromkeys(read(path).needed, user))
    for library, user in sorted(needed.items()):
        if library not in present:
            raise ImageError(
                f"library {library}",
                f"is not in the image, but {user} needs it",
                "add its Debian package, or leave that file out",
            )


def _is_elf(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(len(_MAGIC)) == _MAGIC
