"""The stand-alone webhook must stay small: what it loads must not bring numpy along."""

from __future__ import annotations

import pathlib
import pkgutil
import subprocess
import sys

import pytest

import hami.vendors
import hami.wire

LIGHT = [
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


@pytest.mark.parametrize("package", ["", "wire", "vendors", "cluster", "placement"])
def test_packages_import_nothing_by_themselves(package: str) -> None:
    source = pathlib.Path(hami.wire.__path__[0]).parent / package / "__init__.py"
    assert "import" not in source.read_text()
