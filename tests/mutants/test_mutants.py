"""The tests notice when the product is wrong.

`mutants.toml` lists deliberate errors. Each is put into a copy of the product, and the tests named
beside it are run on that copy: they must fail, by assertions and not because nothing could be
imported. On an unchanged copy the same tests must pass, or the failures would mean nothing.
"""

from __future__ import annotations

import pathlib
import shutil
import subprocess

import pytest

from tests.mutants.running import (
    FAILED,
    PASSED,
    ROOT,
    Mutant,
    all_tests,
    read_mutants,
    run_tests,
)

MUTANTS = read_mutants("mutants.toml")


def run_on(source: pathlib.Path, tests: list[str]) -> subprocess.CompletedProcess[str]:
    """Run tests with `source` in place of src."""
    return run_tests(tests, {"PYTHONPATH": str(source), "HAMI_TESTED_SOURCE": str(source)})


@pytest.fixture
def source(tmp_path: pathlib.Path) -> pathlib.Path:
    shutil.copytree(ROOT / "src", tmp_path / "src", ignore=shutil.ignore_patterns("__pycache__"))
    return tmp_path / "src"


@pytest.mark.timeout(600)
def test_the_unchanged_product_passes(source: pathlib.Path) -> None:
    ran = run_on(source, all_tests(MUTANTS))
    assert ran.returncode == PASSED, ran.stdout


@pytest.mark.timeout(300)
@pytest.mark.parametrize("mutant", MUTANTS, ids=str)
def test_the_error_is_noticed(mutant: Mutant, source: pathlib.Path) -> None:
    mutant.put_into(source / "hami")
    ran = run_on(source, mutant.tests)
    assert ran.returncode == FAILED, ran.stdout[-3000:]


def test_there_are_enough_mutants() -> None:
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS) >= 10
