"""A report on a node that runs for as long as a test wants."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from typing import Any

from hami.agent import advertise
from hami.agent.node_status import NodeStatus
from hami.kube.client import Client
from hami.kube.events import EventRecorder
from tests.scripted_api.server import Recorded, ScriptedApi
from tests.unit.kube.following import PATIENCE_S, quick

NODE = "gpu-1"
REGISTER = "hami.io/node-nvidia-register"
SCORES = "hami.io/node-nvidia-score"
BINDING = "hami.io/node-nvidia-binding"
REASON = "hami.io/node-nvidia-lock-reason"
SHARES = "hami.io/node-nvidia-shares"
LOCK = "hami.io/mutex.lock"


def node(**annotations: str) -> dict[str, Any]:
    return {
        "kind": "Node",
        "metadata": {"name": NODE, "annotations": {"its": "own", **annotations}},
        "status": {"capacity": {"cpu": "2"}, "allocatable": {"cpu": "2"}},
    }


def says(api: ScriptedApi) -> dict[str, str]:
    """Return what our node says by now, without what was its own."""
    found = dict(stored(api)["metadata"].get("annotations") or {})
    assert found.pop("its") == "own"
    return found


def stored(api: ScriptedApi) -> dict[str, Any]:
    found = api.find("nodes", NODE)
    assert found is not None
    return found


def change(api: ScriptedApi, **values: str | None) -> None:
    """Write annotations of our node, as somebody else would."""
    found = stored(api)
    merged = {**found["metadata"]["annotations"], **values}
    found["metadata"]["annotations"] = {k: v for k, v in merged.items() if v is not None}
    api.put(found)


def patches(api: ScriptedApi, path: str = f"/nodes/{NODE}") -> list[dict[str, Any]]:
    """Return the bodies of the patches of our node (not its status), in order."""
    return [body(request) for request in api.sent("PATCH", path) if request.path.endswith(path)]


def status_patches(api: ScriptedApi) -> list[dict[str, Any]]:
    return patches(api, f"/nodes/{NODE}/status")


def body(request: Recorded) -> dict[str, Any]:
    read: dict[str, Any] = json.loads(request.body)
    return read


def desired(report: NodeStatus, register: str | None, **options: Any) -> None:
    """Have the node show this from now on."""
    report.advertise(advertise.advertisement(report.keys, register=register, **options))


@contextlib.asynccontextmanager
async def reporting(client: Client, **options: Any) -> AsyncIterator[NodeStatus]:
    events = EventRecorder(client, component="hami-device-plugin", host=NODE)
    report = NodeStatus(client, NODE, events, **{"sleep": quick, **options})
    running = [asyncio.create_task(report.run()), asyncio.create_task(events.run())]
    try:
        async with asyncio.timeout(PATIENCE_S):
            await report.wait_synced()
        yield report
        assert not any(task.done() for task in running)
    finally:
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
