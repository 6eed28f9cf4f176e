"""kubelet is asked for ids that are named after the cards of the pod that waits."""

from __future__ import annotations

from hami.wire import annotation_keys
from tests.unit.agent.rig import CARD, OTHER, Node

TIME = annotation_keys.BIND_TIME
FREE = tuple(f"{card}-{number}" for card in (CARD, OTHER) for number in range(10))


def waiting(node: Node, name: str, *cards: str, bound: str = "1", **changes: object) -> None:
    parts = [(card, 1000, 0) for card in cards]
    node.pod(name, main=parts, annotations={TIME: bound}, **changes)  # type: ignore[arg-type]


async def test_the_pod_that_waits_longest_is_meant_and_each_container_once(node: Node) -> None:
    async with node.running() as agent:
        waiting(node, "young", OTHER, bound="1700000002")
        waiting(node, "old", CARD, bound="1700000001")
        await node.seen(agent)
        plugin = agent.plugin
        assert await plugin.preferred(FREE, (), 1) == (f"{CARD}-0",)
        assert await plugin.preferred(FREE, (), 1) == (f"{OTHER}-0",)
        assert await plugin.preferred(FREE, (), 1) == ()


async def test_only_a_container_of_that_size_is_meant(node: Node) -> None:
    async with node.running() as agent:
        waiting(node, "one", CARD)
        waiting(node, "two", OTHER, CARD)
        await node.seen(agent)
        assert set(await agent.plugin.preferred(FREE, (), 2)) == {f"{CARD}-0", f"{OTHER}-0"}
        assert await agent.plugin.preferred(FREE, (), 3) == ()


async def test_what_kubelet_wants_included_is(node: Node) -> None:
    async with node.running() as agent:
        waiting(node, "two", OTHER, CARD)
        await node.seen(agent)
        must = (f"{OTHER}-7",)
        assert await agent.plugin.preferred(FREE, must, 2) == (f"{OTHER}-7", f"{CARD}-0")


async def test_who_has_started_or_ended_does_not_wait(node: Node) -> None:
    async with node.running() as agent:
        started = node.pod("a", main=[(CARD, 1000, 0)])
        await node.run_pod(agent, started, "main", "id-0")
        waiting(node, "b", CARD, status={"phase": "Failed"})
        await node.seen(agent)
        assert await agent.plugin.preferred(FREE, (), 1) == ()


async def test_whatever_others_write_holds_up_nobody(node: Node) -> None:
    async with node.running() as agent:
        node.pod("x", main=[(CARD, 1000, 0)], annotations={TIME: "9" * 5000})
        garbage = {annotation_keys.SIGNED_DEVICES: "GPU-1,NVIDIA,much,0:;", TIME: "0"}
        node.pod("y", main=[(CARD, 1000, 0)], annotations=garbage)
        waiting(node, "z", OTHER, bound="٣")
        await node.seen(agent)
        found = [await agent.plugin.preferred(FREE, (), 1) for _ in range(3)]
        assert sorted(found) == [(), (f"{CARD}-0",), (f"{OTHER}-0",)]


async def test_nobody_is_preferred_for_ever(node: Node) -> None:
    async with node.running() as agent:
        pod = node.pod("p", main=[(CARD, 1000, 0)])
        await node.seen(agent)
        await agent.plugin.preferred(FREE, (), 1)
        node.remove(pod)
        await node.seen(agent)
        assert not agent.preference._answered
