"""What the agent writes to pods: one patch, in the end, whatever the API server does meanwhile."""

from __future__ import annotations

import asyncio
import json

import pytest

from hami.wire import annotation_keys
from tests.scripted_api.server import Lost
from tests.unit.agent.rig import CARD, NODE, Node, Object, uid
from tests.unit.kube.following import until

PHASE = annotation_keys.BIND_PHASE
PART = (CARD, 4000, 30)


def patches(node: Node, name: str = "p") -> list[Object]:
    return [json.loads(sent.body) for sent in node.api.sent("PATCH", f"/pods/{name}")]


def told(node: Node, pod: Object) -> bool:
    return bool(node.ledger()[uid(pod)]["told"])


async def test_a_pod_is_told_once_and_the_ledger_remembers(node: Node) -> None:
    async with node.running() as agent:
        pod = node.pod("p", init=[PART], main=[PART])
        await node.run_pod(agent, pod, "init", "id-0")
        await until(lambda: told(node, pod))
        await node.run_pod(agent, pod, "main", "id-1")
        await node.start(agent, "id-1")
    async with node.running() as agent:
        await node.start(agent, "id-1")
        other = node.pod("q", main=[PART])
        await node.run_pod(agent, other, "main", "id-2")
        await until(lambda: told(node, other))
    assert patches(node) == [
        {
            "metadata": {
                "uid": uid(pod),
                "annotations": {PHASE: "success"},
                "labels": {annotation_keys.ASSIGNED_NODE: NODE},
            }
        }
    ]
    assert not node.api.sent("GET", f"/nodes/{NODE}")


@pytest.mark.parametrize(
    "fault", [{"status": 500}, {"status": 403}, {"lost": Lost.BEFORE}, {"lost": Lost.AFTER}]
)
async def test_a_write_that_fails_is_tried_until_it_lands(
    node: Node, fault: dict[str, object]
) -> None:
    async with node.running() as agent:
        failing = node.api.fault(method="PATCH", path="/pods/p", times=3, **fault)
        pod = node.pod("p", main=[PART])
        await node.run_pod(agent, pod, "main", "id-0")
        await until(lambda: told(node, pod))
        assert failing.hits == 3
        assert node.says(pod)[PHASE] == "success"


@pytest.mark.parametrize(("status", "reason"), [(404, "NotFound"), (409, "Conflict"), (422, "")])
async def test_what_can_never_land_is_not_tried_again(node: Node, status: int, reason: str) -> None:
    async with node.running() as agent:
        node.api.fault(method="PATCH", path="/pods/p", times=1, status=status, reason=reason)
        pod = node.pod("p", main=[PART])
        await node.run_pod(agent, pod, "main", "id-0")
        await until(lambda: not agent.pod_status._pending)
        assert not told(node, pod)
        assert len(patches(node)) == 1


async def test_a_younger_pod_with_the_name_is_not_told(node: Node) -> None:
    async with node.running() as agent:
        pod = node.pod("p", main=[PART])
        await node.allocate(agent, pod, "main", "id-0")
        node.api.fault(method="PATCH", path="/pods/p", status=500, on_hit=lambda: node.remove(pod))
        await node.start(agent, "id-0")
        await until(lambda: not node.ledger())
        younger = node.pod("p", main=[PART], uid="uid-younger")
        await until(lambda: not agent.pod_status._pending)
        assert PHASE not in node.says(younger)


async def test_what_was_not_told_is_told_by_the_next_agent(node: Node) -> None:
    fault = node.api.fault(method="PATCH", path="/pods/p", status=500, times=None)
    async with node.running() as agent:
        pod = node.pod("p", main=[PART])
        await node.run_pod(agent, pod, "main", "id-0")
        await until(lambda: fault.hits)
    node.api.faults.remove(fault)
    async with node.running():
        await until(lambda: told(node, pod))
        assert node.says(pod)[PHASE] == "success"


async def test_a_disk_that_is_full_after_the_start_ends_nothing(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with node.running() as agent:
        pod = node.pod("p", main=[PART])
        await node.run_pod(agent, pod, "main", "id-0")
        await until(lambda: told(node, pod))
        other = node.pod("q", main=[PART])
        gate = asyncio.Event()
        node.api.fault(method="PATCH", path="/pods/q", gate=gate)
        await node.run_pod(agent, other, "main", "id-1")
        monkeypatch.setattr("hami.node.files.write_atomic", _disk_full)
        gate.set()
        await until(lambda: not agent.pod_status._pending)
        assert not told(node, other)
        assert node.says(other)[PHASE] == "success"


async def test_a_name_that_is_too_long_for_a_label_is_left_out(node: Node) -> None:
    async with node.running() as agent:
        agent.node_status.name = "n" * 64
        pod = node.pod("p", main=[PART])
        await node.run_pod(agent, pod, "main", "id-0")
        await until(lambda: told(node, pod))
        assert "labels" not in patches(node)[0]["metadata"]


def _disk_full(*_args: object, **_options: object) -> None:
    raise OSError(28, "No space left on device")
