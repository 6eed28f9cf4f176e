"""Build the libraries under test before the first test."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.native import building


@pytest.fixture(scope="session", autouse=True)
def built() -> Path:
    """Compile what is not current; give the folder of this machine's architecture."""
    return building.all_current()
