"""The settings of tests/conftest.py are those of these tests, too."""

from __future__ import annotations

from tests.conftest import pytest_collection_modifyitems

__all__ = ["pytest_collection_modifyitems"]
