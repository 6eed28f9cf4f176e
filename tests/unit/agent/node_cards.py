"""Cards of a node, as short as tests want them."""

from __future__ import annotations

from typing import Any

from hami.node.nvml_cards import Card, MigDevice

GIB = 1024**3


def uuid(number: int, kind: str = "GPU") -> str:
    return f"{kind}-0fc3eda5-e98b-a25b-5b0d-{number:012x}"


def card(index: int, **changes: Any) -> Card:
    """Make an A100 with 40 GiB and no MIG."""
    values: dict[str, Any] = {
        "uuid": uuid(index),
        "index": index,
        "minor": index,
        "name": "NVIDIA A100-SXM4-40GB",
        "memory": 40 * GIB,
        "numa": 0,
        "bus_id": f"0000:{index:02x}:00.0",
        "mig_enabled": False,
        **changes,
    }
    return Card(**values)


def part(parent: Card, instance: int, profile: str = "1g.5gb", **changes: Any) -> MigDevice:
    values: dict[str, Any] = {
        "uuid": uuid(100 * parent.index + instance, "MIG"),
        "profile": profile,
        "memory": 4864 * 1024**2,
        "gpu_instance_id": instance,
        "compute_instance_id": 0,
        "parent": parent.uuid,
        **changes,
    }
    return MigDevice(**values)


def cut(index: int, *instances: int, **changes: Any) -> Card:
    """Make a card that MIG has cut into these instances."""
    whole = card(index)
    parts = tuple(part(whole, instance, **changes) for instance in instances)
    return card(index, mig_enabled=True, mig=parts)
