"""Every benchmark can be loaded.

CI runs none of them: when the table of vendors grew, all of them failed at import for a day.
"""

from __future__ import annotations

import importlib
import pkgutil

import pytest

import benchmarks

MODULES = [module.name for module in pkgutil.iter_modules(benchmarks.__path__)]


@pytest.mark.parametrize("module", MODULES)
def test_a_benchmark_can_be_loaded(module: str) -> None:
    importlib.import_module(f"benchmarks.{module}")
