"""The head of a run says which mutants it has."""

from __future__ import annotations

from tests.mutants.choosing import of_this_run
from tests.mutants.running import NATIVE, PRODUCT, read_mutants


def pytest_report_header() -> list[str]:
    return [
        of_this_run(read_mutants(name), source)[1]
        for name, source in (("mutants.toml", PRODUCT), ("native.toml", NATIVE))
    ]
