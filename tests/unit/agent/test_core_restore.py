"""A pod's grant is written back where its annotations were removed or changed."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from hami.agent import grant_annotations
from hami.serving.grant_keys import Keyring
from hami.wire import annotation_keys, signature
from tests.loop_time import LoopTime
from tests.unit.agent.records import devices
from tests.unit.agent.rig import CARD, KEYS, NODE, OTHER, Keys, Node, Object, uid
from tests.unit.kube.following import until

PART = (CARD, 4000, 30)
REASON = "GrantRestored"
DEVICES, MAC, ASSIGNED = (
    annotation_keys.SIGNED_DEVICES,
    annotation_keys.GRANT_MAC,
    annotation_keys.ASSIGNED_NODE,
)
METRIC = "hami_agent_restored_grants_total"


def strip(node: Node, pod: Object, *keys: str) -> None:
    found = node.stored(pod)
    for key in keys:
        del found["metadata"]["annotations"][key]
    node.api.put(found)


def grant(node: Node, pod: Object) -> dict[str, str | None]:
    says = node.says(pod)
    return {key: says.get(key) for key in (DEVICES, MAC, ASSIGNED)}


def restored(agent: Any) -> str:
    text = b"".join(agent.metrics.registry.render()).decode()
    (line,) = (line for line in text.splitlines() if line.startswith(METRIC))
    return line.rpartition(" ")[2]


def restoring_patches(node: Node) -> list[Object]:
    sent = [json.loads(sent.body)["metadata"] for sent in node.api.sent("PATCH", "/pods/")]
    return [each for each in sent if DEVICES in each["annotations"]]


@pytest.mark.parametrize("keys", [(DEVICES, MAC, ASSIGNED), (DEVICES,), (MAC,), (ASSIGNED,)])
async def test_a_stripped_grant_is_back_within_ten_seconds(
    node: Node, keys: tuple[str, ...]
) -> None:
    time = LoopTime()
    async with node.running() as agent:
        pod = node.pod("p", main=[PART])
        await node.run_pod(agent, pod, "main", "id-0")
        before = grant(node, pod)
        assert all(before.values())
        strip(node, pod, *keys)
        await node.seen(agent)
        await time.forward(9)
        await until(lambda: grant(node, pod) == before)
        await until(lambda: node.events(REASON))
        (message,) = node.events(REASON)
        assert all(key in message for key in keys)
        assert restored(agent) == "1.0"


async def test_a_rewritten_grant_is_back_and_nothing_else_is_written(node: Node) -> None:
    async with node.running() as agent:
        pod = node.pod("p", main=[PART])
        await node.run_pod(agent, pod, "main", "id-0")
        before = grant(node, pod)
        forged = devices([[(OTHER, 1, 0)]])
        node.change(pod, {DEVICES: forged, MAC: "v1:forged", "example.com/note": "theirs"})
        await node.seen(agent)
        await agent.grant_annotations.restore()
        assert grant(node, pod) == before
        assert restoring_patches(node) == [{"uid": uid(pod), "annotations": before}]
        assert node.says(pod)["example.com/note"] == "theirs"
        await agent.grant_annotations.restore()
        assert len(restoring_patches(node)) == 1


async def test_a_grant_is_restored_from_the_disk_after_a_restart(node: Node) -> None:
    async with node.running() as agent:
        pod = node.pod("p", main=[PART])
        await node.run_pod(agent, pod, "main", "id-0")
    before = grant(node, pod)
    strip(node, pod, DEVICES, MAC, ASSIGNED)
    async with node.running() as agent:
        await until(lambda: grant(node, pod) == before)


async def test_a_resize_stays_as_it_is(node: Node) -> None:
    async with node.running() as agent:
        pod = node.pod("p", main=[PART])
        await node.run_pod(agent, pod, "main", "id-0")
        before = grant(node, pod)
        node.resize(pod, [(CARD, 9000, 50)])
        await until(lambda: node.events("GPUShareResized"))
        strip(node, pod, DEVICES)
        await node.seen(agent)
        await agent.grant_annotations.restore()
        assert grant(node, pod) == before
        assert node.says(pod)[annotation_keys.RESIZE] == devices([[(CARD, 9000, 50)]])


@pytest.mark.parametrize("mac", ["", "v1:00000000:" + "A" * 43])
async def test_what_cannot_be_proven_is_not_written_back(node: Node, mac: str) -> None:
    async with node.running(allow_unsigned_grants=True) as agent:
        pod = node.pod("p", main=[PART])
        await node.run_pod(agent, pod, "main", "id-0")
    path = node.layout.record(uid(pod))
    record = json.loads(path.read_bytes())
    path.write_bytes(json.dumps(record | {"mac": mac}).encode())
    strip(node, pod, DEVICES, MAC)
    async with node.running(allow_unsigned_grants=True) as agent:
        await agent.grant_annotations.restore()
        assert grant(node, pod)[DEVICES] is None
        assert restoring_patches(node) == []


async def test_pods_that_have_ended_or_never_started_are_left_alone(node: Node) -> None:
    async with node.running() as agent:
        ended, waiting = node.pod("p", main=[PART]), node.pod("q", main=[PART])
        await node.run_pod(agent, ended, "main", "id-0")
        node.change(ended, phase="Succeeded")
        strip(node, ended, DEVICES)
        strip(node, waiting, DEVICES)
        await node.seen(agent)
        await agent.grant_annotations.restore()
        assert restoring_patches(node) == []


async def test_a_pod_that_has_the_name_of_another_keeps_its_own_annotations(node: Node) -> None:
    async with node.running() as agent:
        pod = node.pod("p", main=[PART])
        await node.run_pod(agent, pod, "main", "id-0")
        strip(node, pod, DEVICES)
        await node.seen(agent)
        failing = node.api.fault(method="PATCH", path="/pods/p", times=1, status=409)
        await agent.grant_annotations.restore()
        assert (failing.hits, node.events(REASON)) == (1, [])


async def test_a_refused_write_is_tried_again(
    node: Node, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(grant_annotations, "_EVERY_S", 0.02)
    async with node.running() as agent:
        pod = node.pod("p", main=[PART])
        await node.run_pod(agent, pod, "main", "id-0")
        before = grant(node, pod)
        failing = node.api.fault(method="PATCH", path="/pods/p", times=3, status=403)
        strip(node, pod, DEVICES, MAC)
        await until(lambda: grant(node, pod) == before)
        assert failing.hits == 3
        assert caplog.text.count("cannot write a grant back yet") == 1


async def test_a_grant_of_the_previous_key_is_written_back(node: Node) -> None:
    assert KEYS.previous is None
    async with node.running() as agent:
        pod = node.pod("p", main=[PART])
        await node.run_pod(agent, pod, "main", "id-0")
        before = grant(node, pod)

        agent.grants._keys = Keys(Keyring(signature.GrantKeys(b"n" * 32, KEYS.current)))
        strip(node, pod, DEVICES)
        await node.seen(agent)
        await asyncio.sleep(0)
        await agent.grant_annotations.restore()
        assert grant(node, pod) == before
        assert before[ASSIGNED] == NODE
