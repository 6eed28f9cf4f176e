"""Import rules that import-linter does not check."""

from __future__ import annotations

import ast
import pathlib
import pkgutil
import subprocess
import sys

import pytest

import hami.vendors
import hami.wire

LIGHT = [
    "hami.admission.decide",
    "hami.placement.request",
    "hami.cluster.quota",
    *(f"hami.wire.{module.name}" for module in pkgutil.iter_modules(hami.wire.__path__)),
    *(f"hami.vendors.{module.name}" for module in pkgutil.iter_modules(hami.vendors.__path__)),
]


def test_the_webhooks_modules_load_no_numpy_and_no_event_loop() -> None:
    program = (
        f"import importlib, sys; [importlib.import_module(m) for m in {LIGHT!r}]; "
        "print(sorted({'numpy', 'asyncio'} & set(sys.modules)))"
    )
    ran = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert ran.stdout.strip() == "[]"


REFERENCE = sorted((pathlib.Path(__file__).parents[2] / "oracle").glob("reference*.py"))


@pytest.mark.parametrize("module", REFERENCE, ids=[path.name for path in REFERENCE])
def test_the_reference_shares_nothing_with_the_product_but_the_wire(module: pathlib.Path) -> None:
    """Otherwise an error of the ledger or of placement could be in both, and they would agree."""
    imported: set[str] = set()
    for node in ast.walk(ast.parse(module.read_text())):
        if isinstance(node, ast.ImportFrom):
            imported.update(f"{node.module}.{name.name}" for name in node.names)
        elif isinstance(node, ast.Import):
            imported.update(name.name for name in node.names)
    ours = {name for name in imported if name.startswith(("hami", "tests", "benchmarks"))}
    allowed = ("hami.wire.", "tests.oracle.reference")
    assert {name for name in ours if not name.startswith(allowed)} == set()


@pytest.mark.parametrize(
    "package", ["", "wire", "vendors", "cluster", "placement", "admission", "installation"]
)
def test_packages_import_nothing_by_themselves(package: str) -> None:
    source = pathlib.Path(hami.wire.__path__[0]).parent / package / "__init__.py"
    assert "import" not in source.read_text()
