"""The native tests notice when libvgpu is wrong.

`native.toml` lists deliberate errors in native/libvgpu. Each is put into a copy of native/, which
is built beside the unchanged stand-in driver and probe; then the tests named beside it must fail.

The copy is a checkout to native/build.py, which builds in it as it does here; the tests need only
find the copy's `native` before their own.
"""

from __future__ import annotations

import pathlib
import shutil
import subprocess
import sys
from collections.abc import Iterator

import pytest

from native import build
from tests.mutants.choosing import of_this_run
from tests.mutants.running import (
    FAILED,
    NATIVE,
    PASSED,
    ROOT,
    Mutant,
    all_tests,
    read_mutants,
    run_tests,
)

MUTANTS = read_mutants("native.toml")
CHOSEN, _ = of_this_run(MUTANTS, NATIVE)
ARCH = build.own_arch()
#: All change the same copy, so they must not be spread over workers.
pytestmark = pytest.mark.xdist_group("native")


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """Make the copy: all that building needs. It builds everything once, then what is changed."""
    folder = tmp_path_factory.mktemp("checkout")
    shutil.copytree(build.SOURCES, folder / "native")
    # What the compiler knows of the C library is shared, what it makes of the copy is not.
    known = ROOT / ".cache/zig/global"
    known.mkdir(parents=True, exist_ok=True)
    (folder / ".cache/zig").mkdir(parents=True)
    (folder / ".cache/zig/global").symlink_to(known)
    return folder


@pytest.fixture
def sources(checkout: pathlib.Path) -> Iterator[pathlib.Path]:
    """Give the copy of native/libvgpu, unchanged before and after each test."""
    folder = checkout / "native/libvgpu"
    before = {path: path.read_bytes() for path in folder.iterdir()}
    yield folder
    for path, content in before.items():
        path.write_bytes(content)


def build_in(checkout: pathlib.Path) -> None:
    """Build here, not in the tests: an error that does not compile would be noticed by any test."""
    done = subprocess.run(
        [sys.executable, "-m", "native.build", "--arch", ARCH],
        cwd=checkout,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout


def run_on(checkout: pathlib.Path, tests: list[str]) -> subprocess.CompletedProcess[str]:
    """Run tests with the copy's `native` in place of this checkout's."""
    environment = {"HAMI_TESTED_SOURCE": str(ROOT / "src")}  # no shrinking of what fails
    return run_tests(tests, environment, "-o", f"pythonpath={checkout}")


@pytest.mark.skipif(not CHOSEN, reason="no mutant is concerned by what has changed")
@pytest.mark.timeout(300)
def test_the_unchanged_library_passes(checkout: pathlib.Path, sources: pathlib.Path) -> None:
    build_in(checkout)
    ran = run_on(checkout, all_tests(CHOSEN))
    assert ran.returncode == PASSED, ran.stdout


@pytest.mark.timeout(300)
@pytest.mark.parametrize("mutant", CHOSEN, ids=str)
def test_the_error_is_noticed(
    mutant: Mutant, checkout: pathlib.Path, sources: pathlib.Path
) -> None:
    mutant.put_into(sources)
    build_in(checkout)
    ran = run_on(checkout, mutant.tests)
    assert ran.returncode == FAILED, ran.stdout[-3000:]


def test_there_are_enough_mutants() -> None:
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS) >= 10
