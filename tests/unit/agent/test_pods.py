"""The agent's pods, also where etcd was restored from a backup."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import pytest

from hami.agent import pods
from hami.kube.client import Client
from tests.scripted_api.server import ScriptedApi
from tests.unit.kube import following


def pod(name: str) -> dict[str, Any]:
    return {"kind": "Pod", "metadata": {"name": name}, "spec": {"nodeName": "a", "containers": []}}


async def test_a_pod_that_is_made_after_a_restore_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(pods, "_LIST_EVERY_S", 0.01)
    async with ScriptedApi() as api, Client(api.access(), user_agent="test") as client:
        backup = api.snapshot()
        for number in range(20):
            api.put(pod(f"fill-{number}"))
        node_pods = pods.NodePods(client, "a", resync_interval=900)
        running = asyncio.create_task(node_pods.informer.run())
        try:
            await asyncio.wait_for(node_pods.informer.wait_synced(), following.PATIENCE_S)
            api.restore(backup)
            made = api.put(pod("new"))
            found = await node_pods.wait(made["metadata"]["uid"], following.PATIENCE_S)
            assert found is not None
            await following.until(lambda: [each.name for each in node_pods.all()] == ["new"])
        finally:
            running.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await running
