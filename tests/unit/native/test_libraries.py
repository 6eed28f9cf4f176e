"""Compiled libraries are found by name and machine, and their absence says what to do."""

from __future__ import annotations

import hashlib
import platform
from pathlib import Path

import pytest

from hami.native import libraries


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(libraries, "_FOLDER", tmp_path)
    for arch in ("x86_64", "aarch64"):
        (tmp_path / arch / "fakegpu").mkdir(parents=True)
        (tmp_path / arch / "libvgpu.so").write_text(arch)
    return tmp_path


@pytest.mark.parametrize(
    ("machine", "arch"),
    [("x86_64", "x86_64"), ("amd64", "x86_64"), ("aarch64", "aarch64"), ("arm64", "aarch64")],
)
def test_a_library_is_found_for_every_name_of_a_machine(
    folder: Path, machine: str, arch: str
) -> None:
    assert libraries.library("libvgpu.so", machine) == folder / arch / "libvgpu.so"


def test_without_a_machine_it_is_this_one(folder: Path) -> None:
    assert libraries.library("libvgpu.so").read_text() == platform.machine()


def test_a_missing_library_says_how_to_get_it(folder: Path) -> None:
    with pytest.raises(libraries.LibraryError, match=r"libcuda\.so\.1 is not there; .*make native"):
        libraries.library("fakegpu/libcuda.so.1", "x86_64")


def test_a_machine_without_libraries_is_told(folder: Path) -> None:
    with pytest.raises(libraries.LibraryError, match="machine 'riscv64' is none of aarch64"):
        libraries.library("libvgpu.so", "riscv64")


def test_the_digest_is_that_of_the_content(folder: Path) -> None:
    found = libraries.digest(folder / "x86_64/libvgpu.so")
    assert found == hashlib.sha256(b"x86_64").hexdigest()
