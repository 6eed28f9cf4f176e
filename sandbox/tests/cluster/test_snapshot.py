"""A cluster resumed from its snapshot, with MIG slices on its node."""

from __future__ import annotations

import asyncio
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from hami.kube import paths
from hami.wire import codec, objects
from hami_sandbox.cluster import Sandbox
from hami_sandbox.plan import NodePlan, Plan

PROFILE = "3g.40gb"
NODE = NodePlan(
    name="sliced", cards=(("H100", 1),), mig={0: (PROFILE, PROFILE)}, mig_strategy="mixed"
)
PLAN = Plan(nodes=(NODE,), simulated=3)
LIMITS = {f"nvidia.com/mig-{PROFILE}": 1}


@pytest.fixture
def snapshot() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="hami-") as name:
        yield Path(name) / "snapshot.json"


async def create(sandbox: Sandbox, name: str) -> None:
    container = {
        "name": "main",
        "image": "pause",
        "command": ["sh", "-c", "echo sees $NVIDIA_VISIBLE_DEVICES; exec sleep infinity"],
        "resources": {"limits": LIMITS},
    }
    spec = {"containers": [container], "terminationGracePeriodSeconds": 0}
    body = codec.encode({"metadata": {"name": name}, "spec": spec})
    await sandbox.client.create(paths.pods("default"), body)


async def pod(sandbox: Sandbox, name: str) -> objects.Pod:
    body = await sandbox.client.get(paths.pods("default", name))
    return codec.decode(body, objects.Pod, what="pod")


async def runs(sandbox: Sandbox, name: str) -> str:
    """Wait until a pod runs; return what it says."""
    async with asyncio.timeout(60):
        while (await pod(sandbox, name)).phase != "Running":
            await asyncio.sleep(0.1)
        while not (said := await sandbox.client.get(f"{paths.pods('default', name)}/log")):
            await asyncio.sleep(0.1)
    return said.decode()


async def test_a_cluster_goes_on_from_its_snapshot(snapshot: Path) -> None:
    async with Sandbox(PLAN, snapshot=snapshot) as sandbox:
        await create(sandbox, "before")
        assert (await runs(sandbox, "before")).startswith("sees MIG-")
        uid = (await pod(sandbox, "before")).uid
    assert os.stat(snapshot).st_mode & 0o077 == 0, "secrets are in it"  # noqa: PTH116 - ASYNC240
    async with Sandbox(PLAN, snapshot=snapshot) as sandbox:
        assert (await pod(sandbox, "before")).uid == uid
        await create(sandbox, "after")
        assert (await runs(sandbox, "after")).startswith("sees MIG-")
