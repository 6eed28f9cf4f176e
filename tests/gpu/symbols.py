"""Names that a library exports, and those of entry_points.def."""

from __future__ import annotations

import re
import struct
from pathlib import Path

from tests.gpu.workers import ROOT

TABLE = ROOT / "native" / "libvgpu" / "entry_points.def"
DYNSYM = 11


def exported(library: Path) -> set[str]:
    """Return the defined names of the dynamic symbol table of a 64-bit ELF file."""
    data = library.read_bytes()
    start = struct.unpack_from("<Q", data, 0x28)[0]
    size, count = struct.unpack_from("<HH", data, 0x3A)
    sections = [struct.unpack_from("<IIQQQQIIQQ", data, start + i * size) for i in range(count)]
    names = set()
    for section in sections:
        if section[1] != DYNSYM:
            continue
        offset, length = section[4], section[5]
        strings = sections[section[6]][4]
        for at in range(offset, offset + length, 24):
            name, _info, _other, index = struct.unpack_from("<IBBH", data, at)
            if index:
                end = data.index(b"\0", strings + name)
                names.add(data[strings + name : end].decode())
    return names


def loaded(name: str) -> Path:
    """Return the file that this process has loaded under a name such as libcuda.so.1."""
    stem = name.partition(".so")[0]
    for line in Path("/proc/self/maps").read_text().splitlines():
        path = line.split(maxsplit=5)[-1]
        if Path(path).name.startswith(stem + ".so"):
            return Path(path)
    raise FileNotFoundError(f"{name} is not loaded")


def table() -> dict[str, set[str]]:
    """Return the names of entry_points.def by kind: HOOK, NEED, NVML_HOOK, NVML_NEED."""
    found: dict[str, set[str]] = {}
    for kind, name in re.findall(r"^(\w+)\((\w+),", TABLE.read_text(), re.MULTILINE):
        found.setdefault(kind, set()).add(name)
    return found
