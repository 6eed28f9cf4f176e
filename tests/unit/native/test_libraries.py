"""Compiled libraries, found by name and machine; a missing one says the remedy."""

from __future__ import annotations

import hashlib
import platform
from pathlib import Path

import pytest

import hami
from hami.agent.containers import library


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """Return an installed package with files for two architectures."""
    for arch in ("x86_64", "aarch64"):
        (tmp_path / "lib" / arch).mkdir(parents=True)
        (tmp_path / "lib" / arch / "libvgpu.so").write_text(arch)
    return tmp_path


@pytest.mark.parametrize(
    ("machine", "arch"),
    [("x86_64", "x86_64"), ("amd64", "x86_64"), ("aarch64", "aarch64"), ("arm64", "aarch64")],
)
def test_a_library_is_found_for_every_name_of_a_machine(
    package: Path, machine: str, arch: str
) -> None:
    assert (
        library.find_built("libvgpu.so", machine, package=package)
        == package / "lib" / arch / "libvgpu.so"
    )


def test_without_a_machine_it_is_this_one(package: Path) -> None:
    assert library.find_built("libvgpu.so", package=package).read_text() == platform.machine()


def test_without_a_package_it_is_the_products() -> None:
    # hatch_build.py puts the files into <package>/lib of the wheel.
    assert Path(hami.__path__[0]) == library._PACKAGE


def test_a_missing_library_says_how_to_get_it(package: Path) -> None:
    with pytest.raises(library.LibraryError, match=r"libcuda\.so\.1 is missing; .*make native"):
        library.find_built("fakegpu/libcuda.so.1", "x86_64", package=package)


def test_a_checkout_has_them_in_one_folder_for_all_packages(tmp_path: Path) -> None:
    (tmp_path / "native/lib/x86_64").mkdir(parents=True)
    (tmp_path / "native/build.py").touch()
    (tmp_path / "native/lib/x86_64/probe").touch()
    found = library.find_built("probe", "x86_64", package=tmp_path / "sandbox/src/hami_sandbox")
    assert found == tmp_path / "native/lib/x86_64/probe"


def test_a_machine_without_libraries_is_reported(package: Path) -> None:
    with pytest.raises(library.LibraryError, match="machine 'riscv64' is none of aarch64"):
        library.find_built("libvgpu.so", "riscv64")


def test_the_digest_is_that_of_the_content(package: Path) -> None:
    found = library.digest(package / "lib/x86_64/libvgpu.so")
    assert found == hashlib.sha256(b"x86_64").hexdigest()
