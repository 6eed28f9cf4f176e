"""Pods of every vendor run on the embedded cluster, on one node with all cards."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping

from hami.kube import paths
from hami.vendors import table
from hami_sandbox.cluster import Sandbox
from hami_sandbox.plan import OTHERS, Plan, parse_node

PATIENCE_S = 120.0
STEP_S = 0.1
ROWS = {vendor.name: vendor for vendor in table.built_in()}
#: What a pod asks for beside one of the count resource.
MORE: Mapping[str, Mapping[str, str]] = {
    "MLU": {"cambricon.com/mlu.smlu.vcore": "10", "cambricon.com/mlu.smlu.vmemory": "8"},
    "Enflame-VGCU": {"enflame.com/vgcu-percentage": "50"},
}


def models() -> dict[str, str]:
    """Return a model of each vendor, by vendor."""
    return {model.vendor: name for name, model in OTHERS.items()}


def pod(vendor: str) -> dict[str, object]:
    limits = {ROWS[vendor].resources.count: "1", **MORE.get(vendor, {})}
    container = {
        "name": "work",
        "image": "gpu-work",
        "command": ["sleep", "3600"],
        "resources": {"limits": limits},
    }
    spec = {"terminationGracePeriodSeconds": 1, "containers": [container]}
    return {"metadata": {"name": vendor.lower()}, "spec": spec}


async def test_a_pod_of_every_vendor_runs() -> None:
    cards = ",".join(f"1x{name}" for name in models().values())
    async with (
        Sandbox(Plan(nodes=(parse_node(f"mixed={cards}"),))) as sandbox,
        asyncio.timeout(PATIENCE_S),
    ):
        for vendor in models():
            await sandbox.client.create(paths.pods("default"), json.dumps(pod(vendor)).encode())
        waiting = set(models())
        while waiting:
            await asyncio.sleep(STEP_S)
            for vendor in list(waiting):
                path = paths.pods("default", vendor.lower())
                found = json.loads(await sandbox.client.get(path))
                assert found["status"]["phase"] in ("Pending", "Running"), found["status"]
                if found["status"]["phase"] == "Running":
                    kept = found["metadata"]["annotations"]
                    assert kept[ROWS[vendor].annotations.allocated]
                    waiting.remove(vendor)
