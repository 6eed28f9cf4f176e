"""Requirements of a library on its machine, read without objdump."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_MAGIC = b"\x7fELF\x02\x01"  # 64 bit, little-endian
_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
_SECTION = struct.Struct("<IIQQQQIIQQ")
_SEGMENT = struct.Struct("<IIQQQQQQ")
_SYMBOL = struct.Struct("<IBBHQQ")
_DYNAMIC = struct.Struct("<qQ")
_NEED = struct.Struct("<HHIII")
_VERSION = struct.Struct("<IHHII")

_SYMBOLS, _TABLE, _NEEDS = 11, 6, 0x6FFFFFFE  # types of sections
_INIT_ARRAY, _PREINIT_ARRAY = 14, 16
_STACK = 0x6474E551  # type of a segment
_NEEDED, _SONAME, _INIT, _TEXT_RELOCATIONS, _FLAGS, _FLAGS_1 = 1, 14, 12, 22, 30, 0x6FFFFFFB
_EXECUTABLE = 1
_BIND_NOW, _NOW_1, _TEXT_RELOCATIONS_FLAG = 8, 1, 4
_GLOBAL, _WEAK = 1, 2


@dataclass(frozen=True)
class Section:
    kind: int
    offset: int
    size: int
    #: Index of the section with its strings.
    link: int


class Library:
    """One ELF file. Each property is read when asked for."""

    def __init__(self, path: Path) -> None:
        self._data = path.read_bytes()
        if not self._data.startswith(_MAGIC):
            raise ValueError(f"{path} is no 64-bit little-endian ELF file")
        header = _HEADER.unpack_from(self._data)
        self.machine: int = header[2]
        self._segments = [
            _SEGMENT.unpack_from(self._data, header[5] + index * header[9])
            for index in range(header[10])
        ]
        rows = (
            _SECTION.unpack_from(self._data, header[6] + index * header[11])
            for index in range(header[12])
        )
        self._sections = [Section(row[1], row[4], row[5], row[6]) for row in rows]
        if not self._of_kind(_TABLE):
            raise ValueError(f"{path} has no dynamic table")

    @property
    def soname(self) -> str:
        [name] = self._named(_SONAME)
        return name

    @property
    def needed(self) -> set[str]:
        """Libraries that it is linked to."""
        return set(self._named(_NEEDED))

    @property
    def versions(self) -> set[str]:
        """Symbol versions that it asks of them, as in GLIBC_2.17."""
        found: set[str] = set()
        for section in self._of_kind(_NEEDS):
            offset = section.offset
            while True:
                _, count, _, first, following = _NEED.unpack_from(self._data, offset)
                at = offset + first
                for _ in range(count):
                    _, _, _, name, step = _VERSION.unpack_from(self._data, at)
                    found.add(self._string(section, name))
                    at += step
                if not following:
                    break
                offset += following
        return found

    @property
    def exports(self) -> set[str]:
        """Symbols that others can bind to."""
        return {name for name, defined in self._symbols() if defined}

    @property
    def imports(self) -> set[str]:
        return {name for name, defined in self._symbols() if not defined}

    @property
    def constructors(self) -> int:
        """How many functions run when it is loaded."""
        arrays = (*self._of_kind(_INIT_ARRAY), *self._of_kind(_PREINIT_ARRAY))
        return sum(section.size // 8 for section in arrays) + len(self._values(_INIT))

    @property
    def executable_stack(self) -> bool:
        """Whether loading it makes stacks executable; without a say it does."""
        flags = [segment[1] for segment in self._segments if segment[0] == _STACK]
        return not flags or bool(flags[0] & _EXECUTABLE)

    @property
    def text_relocations(self) -> bool:
        flags = self._values(_FLAGS)
        return bool(self._values(_TEXT_RELOCATIONS)) or any(
            value & _TEXT_RELOCATIONS_FLAG for value in flags
        )

    @property
    def binds_at_once(self) -> bool:
        return any(value & _BIND_NOW for value in self._values(_FLAGS)) or any(
            value & _NOW_1 for value in self._values(_FLAGS_1)
        )

    def _symbols(self) -> Iterator[tuple[str, bool]]:
        for section in self._of_kind(_SYMBOLS):
            end = section.offset + section.size
            for row in _SYMBOL.iter_unpack(self._data[section.offset : end]):
                name, info, other, place = row[:4]
                public = info >> 4 in {_GLOBAL, _WEAK} and other & 3 in {0, 3}
                if name and public:
                    yield self._string(section, name), place != 0

    def _values(self, tag: int) -> list[int]:
        [table] = self._of_kind(_TABLE)
        rows = _DYNAMIC.iter_unpack(self._data[table.offset : table.offset + table.size])
        return [value for found, value in rows if found == tag]

    def _named(self, tag: int) -> list[str]:
        [table] = self._of_kind(_TABLE)
        return [self._string(table, value) for value in self._values(tag)]

    def _of_kind(self, kind: int) -> list[Section]:
        return [section for section in self._sections if section.kind == kind]

    def _string(self, section: Section, offset: int) -> str:
        start = self._sections[section.link].offset + offset
        return self._data[start : self._data.index(b"\0", start)].decode()
