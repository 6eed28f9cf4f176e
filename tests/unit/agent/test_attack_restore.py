"""Grants are written back although the API server is slow with one of them."""

from __future__ import annotations

import asyncio

import pytest

from hami.agent import grant_annotations
from tests.unit.agent.rig import CARD, Node
from tests.unit.agent.test_core_restore import DEVICES, MAC, grant, strip
from tests.unit.kube.following import until


async def test_a_write_that_gets_no_answer_delays_no_other_pod(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(grant_annotations, "_TIMEOUT_S", 600.0)
    gate = asyncio.Event()
    async with node.running() as agent:
        pods = [node.pod(name, main=[(CARD, 1000, 10)]) for name in ("p", "q")]
        for number, pod in enumerate(pods):
            await node.run_pod(agent, pod, "main", f"id-{number}")
        before = [grant(node, pod) for pod in pods]
        slow = node.api.fault(method="PATCH", path="/pods/p", gate=gate, times=None)
        for pod in pods:
            strip(node, pod, DEVICES, MAC)
        await node.seen(agent)
        restoring = asyncio.create_task(agent.grant_annotations.restore())
        await until(lambda: grant(node, pods[1]) == before[1])
        assert slow.hits > 0
        gate.set()
        await restoring
        assert [grant(node, pod) for pod in pods] == before
