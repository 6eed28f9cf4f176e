"""The judge shares no code with the judged."""

from __future__ import annotations

import ast
import pathlib
import subprocess
import sys

import pytest

import tests.e2e.auditor

FOLDER = pathlib.Path(tests.e2e.auditor.__path__[0])
MODULES = sorted(FOLDER.glob("*.py"))


@pytest.mark.parametrize("module", MODULES, ids=[path.name for path in MODULES])
def test_no_module_imports_the_product(module: pathlib.Path) -> None:
    imported: set[str] = set()
    for node in ast.walk(ast.parse(module.read_text())):
        if isinstance(node, ast.ImportFrom):
            imported.add(node.module or "")
        elif isinstance(node, ast.Import):
            imported.update(name.name for name in node.names)
    assert {name for name in imported if name.split(".")[0] == "hami"} == set()


def test_nothing_of_the_product_is_loaded_with_it() -> None:
    names = [f"tests.e2e.auditor.{path.stem}" for path in MODULES]
    program = (
        f"import importlib, sys; [importlib.import_module(m) for m in {names!r}]; "
        "print([m for m in sys.modules if m.split('.')[0] == 'hami'])"
    )
    ran = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        check=True,
        cwd=FOLDER.parents[2],
    )
    assert ran.stdout.strip() == "[]"


@pytest.mark.parametrize("module", MODULES, ids=[path.name for path in MODULES])
def test_every_module_is_small(module: pathlib.Path) -> None:
    assert len(module.read_text().splitlines()) < 300
