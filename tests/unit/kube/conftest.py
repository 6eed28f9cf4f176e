"""A scripted server, and a client of it, for every test that asks."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from hami.kube.client import Client
from tests.scripted_api.server import ScriptedApi


@pytest.fixture
async def api() -> AsyncIterator[ScriptedApi]:
    async with ScriptedApi() as running:
        yield running


@pytest.fixture
async def client(api: ScriptedApi) -> AsyncIterator[Client]:
    async with Client(api.access(), user_agent="hami-tests", timeout=30) as made:
        yield made
