"""Handmade packages, programs and apt: no test needs Debian or a network."""

from __future__ import annotations

import hashlib
import io
import json
import lzma
import shlex
import struct
import sys
import tarfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

Entry = tarfile.TarInfo


def folder(name: str, mode: int = 0o755) -> tuple[Entry, bytes]:
    return _entry(name, tarfile.DIRTYPE, mode), b""


def file(
    name: str, content: bytes = b"", mode: int = 0o644, uid: int = 0, gid: int = 0
) -> tuple[Entry, bytes]:
    entry = _entry(name, tarfile.REGTYPE, mode)
    entry.size, entry.uid, entry.gid = len(content), uid, gid
    return entry, content


def link(name: str, target: str) -> tuple[Entry, bytes]:
    entry = _entry(name, tarfile.SYMTYPE, 0o777)
    entry.linkname = target
    return entry, b""


def hard_link(name: str, target: str) -> tuple[Entry, bytes]:
    entry = _entry(name, tarfile.LNKTYPE, 0o644)
    entry.linkname = target
    return entry, b""


def device(name: str) -> tuple[Entry, bytes]:
    return _entry(name, tarfile.CHRTYPE, 0o666), b""


def _entry(name: str, kind: bytes, mode: int) -> Entry:
    entry = tarfile.TarInfo(name)
    entry.type, entry.mode = kind, mode
    return entry


def tar(*entries: tuple[Entry, bytes]) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        for entry, content in entries:
            archive.addfile(entry, io.BytesIO(content))
    return out.getvalue()


def ar(*members: tuple[str, bytes]) -> bytes:
    out = b"!<arch>\n"
    for name, content in members:
        out += f"{name:<16}{0:<12}{0:<6}{0:<6}{'100644':<8}{len(content):<10}`\n".encode()
        out += content + b"\n" * (len(content) % 2)
    return out


def deb(
    *entries: tuple[Entry, bytes],
    data: str = "data.tar.xz",
    pack: Callable[[bytes], bytes] = lzma.compress,
) -> bytes:
    control = lzma.compress(tar(file("./control", b"Package: x\n")))
    files = (data, pack(tar(*entries)))
    return ar(("debian-binary", b"2.0\n"), ("control.tar.xz", control), files)


def elf(needed: Sequence[str] = (), *, loader: bool = False, machine: int = 62) -> bytes:
    """Write the smallest file that says what it needs: a header, its segments, a table, names."""
    header, segment, entry = (
        struct.Struct("<16sHHIQQQIHHHHHH"),
        struct.Struct("<IIQQQQQQ"),
        struct.Struct("<qQ"),
    )
    count = 1 + bool(needed) + loader
    base = 0x400000
    table = header.size + segment.size * count
    names = b"\0" + b"".join(name.encode() + b"\0" for name in needed)
    rows = [(1, names.index(b"\0" + name.encode() + b"\0") + 1) for name in needed]
    strings = table + entry.size * (len(rows) + 2)
    dynamic = b"".join(entry.pack(*row) for row in [*rows, (5, base + strings), (0, 0)])
    size = strings + len(names)
    segments = [segment.pack(1, 5, 0, base, base, size, size, 4096)]
    if needed:
        at = base + table
        segments.append(segment.pack(2, 6, table, at, at, len(dynamic), len(dynamic), 8))
    if loader:
        segments.append(segment.pack(3, 4, 0, base, base, 1, 1, 1))
    identity = b"\x7fELF\x02\x01\x01".ljust(16, b"\0")
    sizes = (header.size, segment.size, count, 0, 0, 0)
    head = header.pack(identity, 2, machine, 1, base, header.size, 0, 0, *sizes)
    return head + b"".join(segments) + dynamic + names


_APT = """\
#!{python} -IS
import json, pathlib, shutil, sys
home = pathlib.Path({home!r})
arguments = sys.argv[1:]
with (home / "calls").open("a") as calls:
    calls.write(json.dumps(arguments) + "\\n")
state = json.loads((home / "state.json").read_text())
command = next(word for word in arguments if word in ("update", "install", "autoclean"))
if command in state["failing"]:
    sys.stdout.write("Err:1 http://mirror.example/debian bookworm InRelease\\n")
    sys.stderr.write(state["failing"][command])
    sys.exit(100)
if "--print-uris" in arguments:
    for file, size, digest, uri in state["files"]:
        print(f"'{{uri}}' {{file}} {{size}} {{digest}}")
if "--download-only" in arguments:
    settings = pathlib.Path(arguments[arguments.index("-c") + 1])
    for path in (home / "mirror").iterdir():
        target = settings.parent / "archives" / path.name
        if not target.exists():
            shutil.copyfile(path, target)
"""


@dataclass
class FakeApt:
    """A program called apt-get that answers from a folder and writes down how it was called."""

    home: Path
    files: list[tuple[str, int, str, str]] = field(default_factory=list)
    failing: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        (self.home / "bin").mkdir(parents=True)
        (self.home / "mirror").mkdir()
        program = self.home / "bin/apt-get"
        program.write_text(_APT.format(python=sys.executable, home=str(self.home)))
        program.chmod(0o755)
        self.save()

    def save(self) -> None:
        state = {"files": self.files, "failing": self.failing}
        (self.home / "state.json").write_text(json.dumps(state))

    def fail(self, command: str, words: str) -> None:
        self.failing[command] = words
        self.save()

    def offer(self, name: str, content: bytes, *, digest: str = "", uri: str = "") -> None:
        """Put a package on the mirror; `name` is its file name."""
        (self.home / "mirror" / name).write_bytes(content)
        digest = digest or f"SHA256:{hashlib.sha256(content).hexdigest()}"
        uri = uri or f"http://mirror.example/{name}"
        self.files = [row for row in self.files if row[0] != name]
        self.files.append((name, len(content), digest, uri))
        self.save()

    def calls(self) -> list[list[str]]:
        path = self.home / "calls"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def count(self, word: str) -> int:
        return sum(word in call for call in self.calls())


def digest(content: bytes) -> str:
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


def script(*lines: str) -> bytes:
    return "\n".join(["#!/bin/sh", *lines, ""]).encode()


def quoted(text: str) -> str:
    return shlex.quote(text)


def whole(root: Path) -> dict[str, str]:
    """All that is below `root`: what it is, its mode, its content."""
    seen = {}
    for path in sorted(root.rglob("*")):
        name = path.relative_to(root).as_posix()
        mode = f"{path.lstat().st_mode & 0o7777:o}"
        if path.is_symlink():
            seen[name] = f"-> {path.readlink()}"
        else:
            seen[name] = f"{mode} folder" if path.is_dir() else f"{mode} {path.read_text()}"
    return seen
