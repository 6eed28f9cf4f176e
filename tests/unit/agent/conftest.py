"""A node with a scripted API server, for tests of the whole agent."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.scripted_api.server import ScriptedApi
from tests.unit.agent import rig


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[rig.Node]:
    async with ScriptedApi() as api:
        yield rig.Node(tmp_path, api)
