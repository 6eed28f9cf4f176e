"""Pods as an API server gives them, for those who read one."""

from __future__ import annotations

from typing import Any

from hami.wire import codec
from tests import builders


def pod(
    *containers: dict[str, Any],
    annotations: dict[str, str] | None = None,
    scheduler: str | None = "hami-scheduler",
    node: str | None = None,
    phase: str = "Pending",
    condition: dict[str, str] | None = None,
    gates: tuple[str, ...] = (),
    nominated: str | None = None,
) -> bytes:
    return codec.encode(
        {
            "metadata": {
                "name": "train",
                "namespace": "team",
                "uid": "u1",
                "creationTimestamp": "2026-02-03T04:00:00Z",
                "annotations": annotations or {},
            },
            "spec": {
                "containers": containers,
                "schedulerName": scheduler,
                "nodeName": node,
                "schedulingGates": [{"name": gate} for gate in gates] or None,
            },
            "status": {
                "phase": phase,
                "conditions": [condition] if condition else None,
                "nominatedNodeName": nominated,
            },
        }
    )


MAIN = builders.container(gpu=1, memory=2048, cores=30)
