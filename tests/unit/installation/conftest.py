"""Fixtures of the installation's tests."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest_asyncio

from tests.unit.installation import rig as rigs


@pytest_asyncio.fixture
async def rig() -> AsyncIterator[rigs.Rig]:
    async with rigs.made() as made:
        yield made
