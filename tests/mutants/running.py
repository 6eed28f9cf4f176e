"""Put an error into a copy, and run the tests that must notice it.

pytest's exit code says what happened: 1 means that tests failed, and not that nothing could run.
"""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass

ROOT = pathlib.Path(__file__).parents[2]
PASSED, FAILED = 0, 1
#: What the files in mutants.toml and in native.toml are relative to.
PRODUCT, NATIVE = ".", "native/libvgpu"


@dataclass(frozen=True)
class Mutant:
    """A deliberate error, and the tests of which at least one must fail with it."""

    name: str
    file: str
    find: str
    replace: str
    tests: list[str]

    def __str__(self) -> str:
        return self.name

    def put_into(self, folder: pathlib.Path) -> None:
        """Change the file below `folder`: the copy of what `file` is relative to."""
        path = folder / self.file
        text = path.read_text()
        assert text.count(self.find) == 1, "find must stand exactly once in the file"
        path.write_text(text.replace(self.find, self.replace))


def read_mutants(name: str) -> list[Mutant]:
    listed = tomllib.loads((ROOT / "tests/mutants" / name).read_text())["mutant"]
    return [Mutant(**fields) for fields in listed]


def all_tests(mutants: list[Mutant]) -> list[str]:
    return sorted({test for mutant in mutants for test in mutant.tests})


def run_tests(
    tests: list[str], environment: Mapping[str, str], *options: str
) -> subprocess.CompletedProcess[str]:
    """Run tests of this checkout until the first that fails."""
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *options, *tests],
        cwd=ROOT,
        env={**os.environ, "HAMI_PATIENCE_S": "10", **environment},
        capture_output=True,
        text=True,
        check=False,
    )
