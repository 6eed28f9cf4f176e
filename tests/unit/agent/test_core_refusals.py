"""A pod that is refused three times gets an event and a mark, until it starts."""

from __future__ import annotations

import asyncio

import pytest

from hami.agent.errors import RefusalError
from hami.agent.main import Agent
from hami.wire import annotation_keys, codec, signature
from hami.wire.pod_marks import Refusal
from tests.unit.agent.records import devices
from tests.unit.agent.rig import CARD, KEYS, NODE, Node, uid
from tests.unit.kube.following import until

REASON = "GPUStartRefused"
PART = (CARD, 4000, 30)
SIGNED = {
    annotation_keys.GRANT_MAC: signature.sign(
        KEYS, uid="uid-p", node=NODE, devices=devices([[PART]])
    )
}


async def refuse(node: Node, agent: Agent, *times: float) -> None:
    """Let kubelet try at these times."""
    for time in times:
        agent.refused_pods._clock = lambda now=time: now  # type: ignore[misc]
        with pytest.raises(RefusalError, match="not signed"):
            await node.start(agent, "id-0")


async def forged(node: Node, agent: Agent) -> dict[str, object]:
    pod = node.pod("p", main=[PART], annotations={annotation_keys.GRANT_MAC: None})
    await node.allocate(agent, pod, "main", "id-0")
    await node.seen(agent)
    return pod


async def test_the_third_refusal_in_two_minutes_sends_an_event(node: Node) -> None:
    async with node.running() as agent:
        await forged(node, agent)
        await refuse(node, agent, 0, 100)
        assert agent.events.stats.sent == 0
        await refuse(node, agent, 120)
        await until(lambda: node.events(REASON))
        assert "refused 3 times" in node.events(REASON)[0]
        assert "not signed" in node.events(REASON)[0]
        assert not node.api.sent("POST", "/eviction")


async def test_refusals_far_apart_send_no_event(node: Node) -> None:
    async with node.running() as agent:
        await forged(node, agent)
        await refuse(node, agent, 0, 100, 121, 230)
        assert not agent.events._series


def mark(node: Node) -> Refusal | None:
    found = node.api.find("pods", "p", "team")
    assert found is not None
    text = found["metadata"]["annotations"].get(annotation_keys.START_REFUSED)
    return None if text is None else codec.decode(text, Refusal, what="mark")


async def test_a_pod_refused_three_times_is_marked_and_not_evicted(node: Node) -> None:
    async with node.running() as agent:
        pod = await forged(node, agent)
        await refuse(node, agent, 0, 1)
        assert mark(node) is None
        node.api.fault(method="PATCH", path="/pods/p", status=500, times=1)  # retried
        await refuse(node, agent, 2)
        await until(lambda: mark(node) is not None)
        written = mark(node)
        assert written is not None
        assert (written.uid, written.node) == (uid(pod), agent.node_status.name)
        assert "not signed" in written.reason
        assert not node.api.sent("POST", "/eviction")
        assert not node.api.sent("DELETE", "/pods/p")


async def test_a_pod_that_starts_after_all_loses_its_mark(node: Node) -> None:
    async with node.running() as agent:
        await forged(node, agent)
        await refuse(node, agent, 0, 1, 2)
        await until(lambda: mark(node) is not None)
        written = node.api.find("pods", "p", "team")
        assert written is not None
        node.pod("p", main=[PART], annotations=written["metadata"]["annotations"] | SIGNED)
        await node.seen(agent)
        await node.start(agent, "id-0")
        await until(lambda: mark(node) is None)


async def test_a_start_while_the_mark_is_written_wins(node: Node) -> None:
    async with node.running() as agent:
        pod = await forged(node, agent)
        gate = asyncio.Event()
        held = node.api.fault(method="PATCH", path="/pods/p", gate=gate, times=1)
        await refuse(node, agent, 0, 1, 2)
        await until(lambda: held.hits > 0)
        agent.refused_pods.started(uid(pod))
        gate.set()
        await until(lambda: len(node.api.sent("PATCH", "/pods/p")) == 2)
        await until(lambda: mark(node) is None and not agent.refused_pods._writing)


async def test_deleted_pods_leave_nothing(node: Node) -> None:
    async with node.running(pod_wait=0.01) as agent:
        pod = await forged(node, agent)
        await refuse(node, agent, 0)
        assert agent.refused_pods._times
        node.remove(pod)
        await node.seen(agent)
        assert not agent.refused_pods._times
        with pytest.raises(RefusalError, match="did not show it"):
            await node.start(agent, "id-0")
        assert not agent.refused_pods._times
