"""A node without a kubelet yet, in a folder whose path leaves room for sockets."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from sandbox.tests.unit.kubelet.rig import Node
from tests.scripted_api.server import ScriptedApi
from tests.unit.agent.kubelet_rig import short_folder


@pytest.fixture
async def node() -> AsyncIterator[Node]:
    with short_folder() as folder:
        async with ScriptedApi() as api:
            yield Node(folder, api)
