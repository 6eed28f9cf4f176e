"""The tests notice when the product is wrong.

`mutants.toml` lists deliberate errors. Each is put into a copy of the product, and the tests named
beside it are run on that copy: they must fail, by assertions and not because nothing could be
imported. On an unchanged copy the same tests must pass, or the failures would mean nothing.
"""

from __future__ import annotations

import os
import pathlib
import shutil
import subprocess

import pytest

from tests.mutants.choosing import of_this_run
from tests.mutants.running import (
    FAILED,
    PASSED,
    PRODUCT,
    ROOT,
    Mutant,
    all_tests,
    read_mutants,
    run_tests,
)

MUTANTS = read_mutants("mutants.toml")
CHOSEN, _ = of_this_run(MUTANTS, PRODUCT)
#: Folders with our packages; the checkout's native files stay in reach of the copies.
SOURCES = ("src", "sandbox/src")


def run_on(
    copy: pathlib.Path, tests: list[str], patience: float = 10
) -> subprocess.CompletedProcess[str]:
    """Run tests with the packages of `copy` in place of the checkout's."""
    path = os.pathsep.join(str(copy / folder) for folder in SOURCES)
    environment = {"PYTHONPATH": path, "HAMI_TESTED_CHECKOUT": str(copy)}
    return run_tests(tests, environment | {"HAMI_PATIENCE_S": str(patience)})


@pytest.fixture
def copy(tmp_path: pathlib.Path) -> pathlib.Path:
    """Copy the product; compiled files too, which saves each run a second."""
    ignored = shutil.ignore_patterns("*.pyc.*")  # those that are being written
    for folder in SOURCES:
        shutil.copytree(ROOT / folder, tmp_path / folder, ignore=ignored)
    (tmp_path / "native").symlink_to(ROOT / "native")
    return tmp_path


@pytest.mark.skipif(not CHOSEN, reason="no mutant is concerned by what has changed")
@pytest.mark.timeout(1800)
def test_the_unchanged_product_passes(copy: pathlib.Path) -> None:
    ran = run_on(copy, all_tests(CHOSEN), patience=60)
    assert ran.returncode == PASSED, ran.stdout


@pytest.mark.timeout(300)
@pytest.mark.parametrize("mutant", CHOSEN, ids=str)
def test_the_error_is_noticed(mutant: Mutant, copy: pathlib.Path) -> None:
    mutant.put_into(copy)
    ran = run_on(copy, mutant.tests)
    assert ran.returncode == FAILED, ran.stdout[-3000:]


def test_there_are_enough_mutants() -> None:
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS) >= 10
