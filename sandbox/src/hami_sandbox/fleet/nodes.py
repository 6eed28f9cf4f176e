"""Node objects of a simulated fleet, as kubelet and agent would write them."""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Sequence

import msgspec

from hami.kube import errors, paths
from hami.kube.client import Client
from hami.wire import codec, node_marks, node_register
from hami_sandbox import api_objects
from hami_sandbox.gpu_models import MODELS
from hami_sandbox.readiness import BINDING, GPU, REGISTER

_log = logging.getLogger(__name__)

#: The label of simulated nodes.
MARK = "hami.io/sandbox"

#: Requests at once: more would delay the API server's other clients.
_AT_ONCE = 16
_SHARES = 10
_NAMESPACE = uuid.UUID("2f0f2f06-4cc3-5a52-9a33-0d3d2f7f3c1e")


class Row(msgspec.Struct, frozen=True):
    """One node: its name, and its cards as its register annotation has them."""

    name: str
    register: str
    shares: int


def rows(prefix: str, count: int, cards: Sequence[tuple[str, int]]) -> list[Row]:
    """Return the nodes of a fleet; names and cards are the same at every start."""
    digits = len(str(count))
    return [_row(f"{prefix}-{number:0{digits}d}", cards) for number in range(1, count + 1)]


def _row(name: str, cards: Sequence[tuple[str, int]]) -> Row:
    models = [MODELS[model] for model, count in cards for _ in range(count)]
    devices = [
        node_register.RegisteredCard(
            id=f"GPU-{uuid.uuid5(_NAMESPACE, f'{name}/{index}')}",
            index=index,
            count=_SHARES,
            devmem=model.memory_mib,
            devcore=100,
            type=f"NVIDIA-{model.name}",
            numa=int(index >= (len(models) + 1) // 2),
            mode="hami-core",
            health=True,
        )
        for index, model in enumerate(models)
    ]
    return Row(name, node_register.encode_json(devices), _SHARES * len(models))


async def write(client: Client, fleet: Sequence[Row]) -> None:
    """Create the nodes, or bring those that are there up to date."""
    turns = asyncio.Semaphore(_AT_ONCE)

    async def one(row: Row) -> None:
        async with turns:
            await _write(client, row)

    await asyncio.gather(*map(one, fleet))
    _log.info("created simulated nodes", extra={"nodes": len(fleet)})


async def _write(client: Client, row: Row) -> None:
    notes = {REGISTER: row.register, BINDING: node_marks.late_binding_mark(row.register)}
    labels = {"kubernetes.io/hostname": row.name, MARK: "simulated"}
    metadata = {"name": row.name, "annotations": notes, "labels": labels}
    node = {"apiVersion": "v1", "kind": "Node", "metadata": metadata}
    try:
        await client.create(paths.nodes(), codec.encode(node))
    except errors.Conflict:  # it is there from an earlier start
        await client.patch(paths.nodes(row.name), codec.encode({"metadata": metadata}))
    await client.patch(paths.node_status(row.name), codec.encode({"status": _status(row)}))


def _status(row: Row) -> dict[str, object]:
    now = api_objects.stamp(api_objects.now())
    room = {"cpu": "128", "memory": "1Ti", "pods": "250", GPU: str(row.shares)}
    return {
        "capacity": room,
        "allocatable": room,
        "addresses": [
            {"type": "InternalIP", "address": "127.0.0.1"},
            {"type": "Hostname", "address": row.name},
        ],
        "conditions": [
            {
                "type": "Ready",
                "status": "True",
                "reason": "Simulated",
                "message": "a simulated node without a kubelet",
                "lastHeartbeatTime": now,
                "lastTransitionTime": now,
            }
        ],
        "nodeInfo": {
            "kubeletVersion": api_objects.KUBERNETES,
            "containerRuntimeVersion": "simulated://1.0",
            "osImage": "simulated",
            "kernelVersion": "0",
            "operatingSystem": "linux",
            "architecture": "amd64",
        },
    }
