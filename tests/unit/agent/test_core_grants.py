"""Grants that are signed, frozen, unsigned, or changed on the way."""

from __future__ import annotations

from typing import Any

import pytest

from hami.agent.errors import RefusalError
from hami.wire import annotation_keys, signature
from tests.unit.agent.records import devices
from tests.unit.agent.rig import CARD, GPU, KEYS, NODE, OTHER, Node, uid

DEVICES, MAC = annotation_keys.SIGNED_DEVICES, annotation_keys.GRANT_MAC
PART = (CARD, 4000, 30)
MORE = devices([[(CARD, 40_000, 0)]])


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"annotations": {MAC: None}}, "not signed"),
        ({"annotations": {MAC: "v1:00000000:forged"}}, "was not made for this pod"),
        ({"annotations": {DEVICES: MORE}}, "was not made for this pod"),
        ({"signed_for": "gpu-2"}, "was not made for this pod"),
        ({"annotations": {DEVICES: None}}, "hami's scheduler did not give it a card"),
        ({"annotations": {DEVICES: "", MAC: None}}, "hami's scheduler did not give it a card"),
        (
            {
                "annotations": {
                    MAC: signature.sign(KEYS, uid="uid-q", node=NODE, devices=devices([[PART]]))
                }
            },
            "was not made for this pod",
        ),
    ],
)
async def test_a_grant_that_our_scheduler_did_not_make_starts_nothing(
    node: Node, changes: dict[str, Any], why: str
) -> None:
    async with node.running() as agent:
        pod = node.pod("p", main=[PART], **changes)
        await node.allocate(agent, pod, "main", "id-0")
        with pytest.raises(RefusalError, match=why):
            await node.start(agent, "id-0")
        assert node.ledger() == {}
        assert node.prepared() == set()
        good = node.pod("q", main=[PART])
        await node.run_pod(agent, good, "main", "id-1")


async def test_a_signed_grant_that_cannot_be_read_is_named(node: Node) -> None:
    async with node.running() as agent:
        garbage = f"{CARD},NVIDIA,much,0:;"
        mac = signature.sign(KEYS, uid="uid-p", node=NODE, devices=garbage)
        pod = node.pod("p", main=[PART], annotations={DEVICES: garbage, MAC: mac})
        await node.allocate(agent, pod, "main", "id-0")
        with pytest.raises(RefusalError, match="much"):
            await node.start(agent, "id-0")


async def test_a_grant_for_more_containers_than_there_are_is_refused(node: Node) -> None:
    async with node.running() as agent:
        two = devices([[PART], [PART]])
        mac = signature.sign(KEYS, uid="uid-p", node=NODE, devices=two)
        pod = node.pod("p", main=[PART], annotations={DEVICES: two, MAC: mac})
        await node.allocate(agent, pod, "main", "id-0")
        with pytest.raises(RefusalError, match="2 containers, but has 1"):
            await node.start(agent, "id-0")


async def test_a_grant_is_frozen_at_first_sight(node: Node) -> None:
    async with node.running() as agent:
        pod = node.pod("p", init=[(CARD, 1000, 10)], main=[PART])
        await node.run_pod(agent, pod, "init", "id-0")
        changed = devices([[(CARD, 1000, 10)], [(OTHER, 9000, 0)]])
        mac = signature.sign(KEYS, uid=uid(pod), node=NODE, devices=changed)
        node.change(pod, {DEVICES: changed, MAC: mac})
        await node.seen(agent)
        allocation_id = await node.run_pod(agent, pod, "main", "id-1")
        assert node.limits(allocation_id) == [PART]


async def test_unsigned_grants_count_where_the_administrator_says_so(node: Node) -> None:
    async with node.running(allow_unsigned_grants=True) as agent:
        pod = node.pod("p", main=[PART], annotations={MAC: None})
        allocation_id = await node.run_pod(agent, pod, "main", "id-0")
        assert node.limits(allocation_id) == [PART]
        forged = node.pod("q", main=[PART], annotations={MAC: "v1:00000000:forged"})
        await node.allocate(agent, forged, "main", "id-1")
        with pytest.raises(RefusalError, match="was not made for this pod"):
            await node.start(agent, "id-1")


async def test_without_keys_nothing_is_checked(node: Node) -> None:
    async with node.running(keys=None) as agent:
        pod = node.pod("p", main=[PART], annotations={MAC: "whatever"})
        allocation_id = await node.run_pod(agent, pod, "main", "id-0")
        assert node.limits(allocation_id) == [PART]


async def test_slots_that_hamis_scheduler_leaves_out_are_put_back(node: Node) -> None:
    async with node.running(allow_unsigned_grants=True) as agent:
        left_out = {DEVICES: devices([[PART]]), MAC: None}
        pod = node.pod("p", init=[], main=[PART], annotations=left_out)
        allocation_id = await node.run_pod(agent, pod, "main", "id-0")
        assert node.limits(allocation_id) == [PART]


@pytest.mark.parametrize(
    ("namespace", "value", "free"),
    [
        ("free", "true", True),
        ("free", "1", True),
        ("free", "false", False),
        ("free", "perhaps", False),
        ("team", "true", False),
    ],
)
async def test_the_limiter_is_off_only_where_the_administrator_lets_it(
    node: Node, namespace: str, value: str, *, free: bool
) -> None:
    async with node.running(uncontrolled_namespaces="other, free") as agent:
        env = [{"name": "A", "value": "1"}, {"name": "CUDA_DISABLE_CONTROL", "value": value}]
        pod = node.pod("p", main=[PART], namespace=namespace, container={"env": env})
        allocation_id = await node.run_pod(agent, pod, "main", "id-0")
        assert node.layout.policy(allocation_id).exists() is not free
        assert node.env(allocation_id)["NVIDIA_VISIBLE_DEVICES"] == CARD


@pytest.mark.parametrize(("asked", "priority"), [(None, 1), (0, 0), ("1", 1), ("often", 1)])
async def test_a_containers_priority_is_in_its_policy_file(
    node: Node, asked: object, priority: int
) -> None:
    async with node.running() as agent:
        limits = {GPU: 1, "nvidia.com/priority": asked}
        pod = node.pod("p", main=[PART], container={"resources": {"limits": limits}})
        allocation_id = await node.run_pod(agent, pod, "main", "id-0")
        assert node.policy(allocation_id).priority == priority
