"""A fleet of any size as API objects: eight-card nodes, pods spread evenly.

The nodes have NVIDIA cards, or those and eight of one of three other vendors, in turn.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, TypeVar

import msgspec

from hami.vendors import table
from hami.wire import annotation_keys, codec, node_register, objects, shares
from hami.wire.shares import Share

VENDORS = table.built_in()
NVIDIA = table.nvidia(VENDORS)
CARDS = 8
SPLIT = 20
MEMORY = 81920

T = TypeVar("T")


def node_name(number: int) -> str:
    return f"gpu-node-{number:05d}"


def card_id(node: int, card: int) -> str:
    return f"GPU-{node:08x}-0000-4000-8000-{card:012x}"


def nodes(number: int) -> Iterator[objects.Node]:
    for node in range(number):
        devices = [
            node_register.RegisteredCard(
                id=card_id(node, card),
                index=card,
                count=SPLIT,
                devmem=MEMORY,
                devcore=100,
                type="NVIDIA H100 80GB HBM3",
                numa=card // 4,
                mode="hami-core",
                health=True,
            )
            for card in range(CARDS)
        ]
        yield _decoded(
            objects.Node,
            {
                "metadata": {
                    "name": node_name(node),
                    "annotations": {
                        NVIDIA.annotations.register: node_register.encode_json(devices)
                    },
                },
                "status": {"allocatable": {NVIDIA.resources.count: CARDS * SPLIT}},
            },
        )


def mixed_nodes(number: int) -> Iterator[objects.Node]:
    """Yield nodes with NVIDIA cards alone, and beside them Hygon's, AMD's, Cambricon's, in turn."""
    for at, node in enumerate(nodes(number)):
        name = node_name(at)
        listed = node_register.decode_json(node.annotation(NVIDIA.annotations.register))
        own = [msgspec.structs.replace(card, id=f"X-{card.id}") for card in listed]
        annotations = {**node.annotations}
        amounts: dict[str, Any] = {**node.allocatable}
        match at % 4:
            case 1:
                vendor = row("DCU")
                annotations[vendor.annotations.register] = node_register.encode_colon(own)
                amounts[vendor.resources.count] = CARDS * SPLIT
            case 2:
                vendor = row("AMD")
                annotations[vendor.annotations.register] = node_register.encode_json(own)
                amounts[vendor.resources.count] = CARDS
            case 3:
                names = row("MLU").resources
                amounts |= {names.cores: CARDS * 100, names.memory: CARDS * MEMORY // 256}
        yield _decoded(
            objects.Node,
            {
                "metadata": {"name": name, "annotations": annotations},
                "status": {"allocatable": amounts, "capacity": amounts},
            },
        )


def row(name: str) -> table.Vendor:
    (found,) = (vendor for vendor in VENDORS if vendor.name == name)
    return found


def placed_pods(number: int, on_nodes: int) -> Iterator[objects.Pod]:
    """Yield bound pods of one card each, spread over nodes and then over cards."""
    for at in range(number):
        node, grant = placed_share(at, on_nodes)
        yield pod(
            f"placed-{at}",
            [{"gpu": 1, "memory": grant.memory_mib, "cores": grant.cores}],
            annotations={
                annotation_keys.ASSIGNED_NODE: node_name(node),
                NVIDIA.annotations.allocated: shares.encode([[grant]]),
            },
            node_name=node_name(node),
        )


def placed_share(at: int, on_nodes: int) -> tuple[int, Share]:
    """Return the number of the node of a placed pod, and its share of a card there."""
    node, card = at % on_nodes, at // on_nodes % CARDS
    memory, cores = (2000, 4000, 8000)[at % 3], (5, 10)[at % 2]
    return node, Share(card_id(node, card), NVIDIA.name, memory, cores)


def pod(
    name: str,
    shares: list[dict[str, int]],
    *,
    init: list[dict[str, int]] | None = None,
    annotations: dict[str, str] | None = None,
    node_name: str | None = None,
    vendor: table.Vendor = NVIDIA,
) -> objects.Pod:
    """Make a pod of containers by `{"gpu": 1, "memory": 1000, "percent": 10, "cores": 5}`."""
    return _decoded(
        objects.Pod,
        {
            "metadata": {
                "name": name,
                "namespace": "bench",
                "uid": f"uid-{name}",
                "annotations": annotations or {},
            },
            "spec": {
                "nodeName": node_name,
                "containers": [_container(f"app{at}", s, vendor) for at, s in enumerate(shares)],
                "initContainers": [
                    _container(f"init{at}", s, vendor) for at, s in enumerate(init or [])
                ],
            },
        },
    )


def _container(name: str, share: dict[str, int], vendor: table.Vendor) -> dict[str, Any]:
    resources = vendor.resources
    names = {
        "gpu": resources.count,
        "memory": resources.memory,
        "percent": resources.memory_percentage,
        "cores": resources.cores,
    }
    return {"name": name, "resources": {"limits": {names[key]: share[key] for key in share}}}


def _decoded(into: type[T], document: dict[str, Any]) -> T:
    return codec.decode(codec.encode(document), into, what="benchmark object")
