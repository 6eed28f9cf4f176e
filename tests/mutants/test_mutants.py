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
import sys
import tomllib

import pytest

ROOT = pathlib.Path(__file__).parents[2]
MUTANTS = tomllib.loads((ROOT / "tests/mutants/mutants.toml").read_text())["mutant"]
PASSED, FAILED = 0, 1


def run_tests(source: pathlib.Path, tests: list[str]) -> subprocess.CompletedProcess[str]:
    """Run tests with `source` in place of src; pytest's exit code 1 means that tests failed."""
    environment = {**os.environ, "PYTHONPATH": str(source), "HAMI_TESTED_SOURCE": str(source)}
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *tests],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture
def source(tmp_path: pathlib.Path) -> pathlib.Path:
    shutil.copytree(ROOT / "src", tmp_path / "src", ignore=shutil.ignore_patterns("__pycache__"))
    return tmp_path / "src"


@pytest.mark.timeout(600)
def test_the_unchanged_product_passes(source: pathlib.Path) -> None:
    ran = run_tests(source, sorted({test for mutant in MUTANTS for test in mutant["tests"]}))
    assert ran.returncode == PASSED, ran.stdout


@pytest.mark.timeout(300)
@pytest.mark.parametrize("mutant", MUTANTS, ids=[mutant["name"] for mutant in MUTANTS])
def test_the_error_is_noticed(mutant: dict[str, str | list[str]], source: pathlib.Path) -> None:
    file = source / "hami" / str(mutant["file"])
    text = file.read_text()
    assert text.count(str(mutant["find"])) == 1, "find must stand exactly once in the file"
    file.write_text(text.replace(str(mutant["find"]), str(mutant["replace"])))
    ran = run_tests(source, list(mutant["tests"]))
    assert ran.returncode == FAILED, ran.stdout[-3000:]


def test_there_are_enough_mutants() -> None:
    assert len({mutant["name"] for mutant in MUTANTS}) == len(MUTANTS) >= 10
