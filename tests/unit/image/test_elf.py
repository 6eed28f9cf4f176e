"""Missing libraries of a program are found when the image is built."""

from __future__ import annotations

from pathlib import Path

import pytest

from hami.image import elf
from hami.image.errors import ImageError
from tests.unit.image import handmade as made


@pytest.fixture
def program(tmp_path: Path) -> Path:
    return tmp_path / "program"


def test_what_a_program_needs_is_read_from_it(program: Path) -> None:
    program.write_bytes(made.elf(["libc.so.6", "libm.so.6"], loader=True))
    assert elf.read(program) == elf.Program(62, dynamic=True, needed=("libc.so.6", "libm.so.6"))


def test_a_static_program_passes(program: Path) -> None:
    program.write_bytes(made.elf())
    elf.check_static(program, "amd64")


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (made.elf(["libc.so.6"], loader=True), "is linked dynamically; build it for amd64 with"),
        (made.elf(loader=True), "is linked dynamically"),
        (made.elf(machine=183), "is not for amd64"),
        (b"#!/bin/sh\n", "is no 64-bit Linux program"),
        (b"", "is no 64-bit Linux program"),
        (made.elf()[:70], "cannot be read"),
        (made.elf(["libc.so.6"])[:-5], "cannot be read"),
    ],
)
def test_what_would_not_start_alone_is_refused(program: Path, content: bytes, words: str) -> None:
    program.write_bytes(content)
    with pytest.raises(ImageError, match=words):
        elf.check_static(program, "amd64")


def test_a_missing_program_is_an_error(program: Path) -> None:
    with pytest.raises(ImageError, match="cannot be read"):
        elf.check_static(program, "amd64")


def test_this_interpreter_is_read_without_error() -> None:
    program = elf.read(Path("/proc/self/exe").resolve())
    assert all(".so" in name for name in program.needed)


def test_libraries_may_lie_in_any_layer_and_behind_links(tmp_path: Path) -> None:
    (tmp_path / "lower").mkdir()
    (tmp_path / "upper/deep").mkdir(parents=True)
    (tmp_path / "lower/libz.so.1.2").write_bytes(made.elf())
    (tmp_path / "lower/libz.so.1").symlink_to("libz.so.1.2")
    (tmp_path / "upper/deep/module.so").write_bytes(made.elf(["libz.so.1"]))
    (tmp_path / "upper/text.so").write_text("GROUP ( libz.so.9 )")
    elf.check_libraries([tmp_path / "lower", tmp_path / "upper"])
    (tmp_path / "lower/libz.so.1").unlink()
    with pytest.raises(ImageError, match=r"libz\.so\.1: is not in the image, but deep/module\.so"):
        elf.check_libraries([tmp_path / "lower", tmp_path / "upper"])
