"""A pod that is refused again and again is told, and sent away where that is wished."""

from __future__ import annotations

import json

import pytest

from hami.agent.errors import RefusalError
from hami.agent.main import Agent
from hami.wire import annotation_keys
from tests.unit.agent.rig import CARD, Node, uid
from tests.unit.kube.following import until

REASON = "GPUStartRefused"
PART = (CARD, 4000, 30)


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


async def test_the_third_refusal_in_two_minutes_is_told(node: Node) -> None:
    async with node.running() as agent:
        await forged(node, agent)
        await refuse(node, agent, 0, 100)
        assert agent.events.stats.sent == 0
        await refuse(node, agent, 120)
        await until(lambda: node.events(REASON))
        assert "refused 3 times" in node.events(REASON)[0]
        assert "not signed" in node.events(REASON)[0]
        assert not node.api.sent("POST", "/eviction")


async def test_refusals_far_apart_are_not_told(node: Node) -> None:
    async with node.running() as agent:
        await forged(node, agent)
        await refuse(node, agent, 0, 100, 121, 230)
        assert not agent.events._series


async def test_a_refused_pod_is_evicted_where_that_is_wished(node: Node) -> None:
    async with node.running(evict_refused=True) as agent:
        pod = await forged(node, agent)
        # First a budget forbids it; the next time it is tried again.
        node.api.fault(method="POST", path="/eviction", status=429)
        await refuse(node, agent, 0, 1, 2)
        await until(lambda: not agent.refused_pods._evicting)
        node.api.fault(method="POST", path="/eviction", status=201)
        await refuse(node, agent, 3, 4, 5)
        await until(lambda: not agent.refused_pods._evicting)
        sent = node.api.sent("POST", "/namespaces/team/pods/p/eviction")
        assert len(sent) >= 2
        assert json.loads(sent[-1].body)["deleteOptions"] == {"preconditions": {"uid": uid(pod)}}


async def test_pods_that_are_gone_leave_nothing(node: Node) -> None:
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
