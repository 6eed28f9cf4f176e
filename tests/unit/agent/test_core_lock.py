"""Binding by the node's lock: the named pod is served, patched, and released."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from hami.agent.containers.library import library_path
from hami.agent.errors import RefusalError
from hami.agent.kubelet.kubelet_api import Mount
from hami.agent.main import Agent
from hami.node import layout
from hami.wire import annotation_keys, grant
from tests.builders import NVIDIA
from tests.unit.agent.rig import CARD, NODE, OTHER, SIGNING, Node, Object, allocation_id_of, uid
from tests.unit.kube.following import until

PHASE = annotation_keys.BIND_PHASE
TO_ALLOCATE = NVIDIA.annotations.to_allocate
PART = (CARD, 4000, 30)


async def locked(node: Node, agent: Agent, name: str, **containers: object) -> Object:
    """Bind a pod as the scheduler does where there is a lock."""
    pod = node.pod(name, **(containers or {"main": [PART]}))  # type: ignore[arg-type]
    node.change(pod, {PHASE: "allocating"})
    node.lock(pod)
    await node.seen(agent)
    return pod


async def test_the_pod_that_the_lock_names_is_served_and_lets_the_lock_go(node: Node) -> None:
    async with node.running(binding="lock") as agent:
        pod = await locked(node, agent, "p")
        answer = await node.allocate(agent, pod, "main", "id-0")
        allocation_id = allocation_id_of(answer)
        assert not answer.cdi_devices
        assert node.prepared() == set()
        assert answer.envs["NVIDIA_VISIBLE_DEVICES"] == CARD
        assert answer.envs["CUDA_DEVICE_MEMORY_LIMIT_0"] == "4000m"
        # The pod's variables win over these, but not over the list of cards.
        listed = [each.container_path for each in answer.mounts if each.host_path == "/dev/null"]
        assert listed == [f"/var/run/nvidia-container-devices/{CARD}"]
        mounts = {mount.container_path: mount for mount in answer.mounts}
        assert mounts["/etc/ld.so.preload"].read_only
        assert mounts["/run/hami/share/policy"].read_only
        state = mounts["/run/hami/share/state"]
        assert not state.read_only
        assert state.host_path == str(node.layout.state(allocation_id))
        assert node.limits(allocation_id) == [PART]
        await until(lambda: not node.locked)
        await until(lambda: node.says(pod).get(PHASE) == "success")
        assert node.says(pod)[TO_ALLOCATE] == ";"
        await node.start(agent, "id-0")


async def test_containers_are_served_in_their_order(node: Node) -> None:
    async with node.running(binding="lock") as agent:
        pod = await locked(node, agent, "p", init=[(CARD, 1000, 10)], main=[(OTHER, 2000, 20)])
        init = await node.allocate(agent, pod, "init", "id-0")
        assert node.locked
        main = await node.allocate(agent, pod, "main", "id-0")
        assert init.envs["NVIDIA_VISIBLE_DEVICES"] == CARD
        assert main.envs["NVIDIA_VISIBLE_DEVICES"] == OTHER
        await until(lambda: not node.locked)
        await node.start(agent, "id-0")


@pytest.mark.parametrize("value", ["", "2026-01-01T00:00:00Z", "garbage", "x,y,z"])
async def test_without_a_pod_in_the_lock_no_pod_is_served(node: Node, value: str) -> None:
    async with node.running(binding="lock") as agent:
        found = node.api.find("nodes", "gpu-1")
        assert found is not None
        found["metadata"]["annotations"] = {annotation_keys.NODE_LOCK: value}
        node.api.put(found)
        with pytest.raises(RefusalError):
            await agent.plugin.allocate([("id-0",)])
        assert node.ledger() == {}


async def test_two_pods_whose_turns_were_swapped_never_get_each_others_share(node: Node) -> None:
    async with node.running(binding="lock") as agent:
        mine = await locked(node, agent, "a")
        other = node.pod("b", main=[(OTHER, 8000, 0)])
        # kubelet asks for b while the lock is a's.
        await node.allocate(agent, other, "main", "id-b")
        await until(lambda: not node.locked)
        with pytest.raises(RefusalError, match="cards of pod team/a"):
            await node.start(agent, "id-b")
        # Nor after the agent has looked at what kubelet holds.
        await node.seen(agent)
        await agent.reconciler.recover_and_clean_up()
        with pytest.raises(RefusalError, match="cards of pod team/a"):
            await node.start(agent, "id-b")
        assert set(node.ledger()) == {uid(mine)}
    # Nor when the ledger is lost: the policy says whose it is.
    node.layout.record(uid(mine)).unlink()
    async with node.running(binding="lock") as agent:
        await agent.reconciler.recover_and_clean_up()
        with pytest.raises(RefusalError, match="fixed already"):
            await node.start(agent, "id-b")
        assert node.ledger() == {}


async def test_a_whole_card_that_was_swapped_is_not_recovered(node: Node) -> None:
    async with node.running(binding="lock") as agent:
        mine = await locked(node, agent, "a", main=[(CARD, 40 * 1024, 100)])
        other = node.pod("b", main=[(OTHER, 40 * 1024, 100)])
        await node.allocate(agent, other, "main", "id-b")
    node.layout.record(uid(mine)).unlink()
    async with node.running(binding="lock") as agent:
        await agent.reconciler.recover_and_clean_up()
        assert node.ledger() == {}


async def test_a_pod_that_cannot_be_served_fails_and_releases_the_lock(node: Node) -> None:
    async with node.running(binding="lock") as agent:
        pod = await locked(node, agent, "p", main=[(CARD, 10**6, 0)])
        with pytest.raises(RefusalError, match="do not fit"):
            await agent.plugin.allocate([("id-0",)])
        await until(lambda: node.says(pod)[PHASE] == "failed")
        assert not node.locked


async def test_a_wrong_number_of_devices_is_refused(node: Node) -> None:
    async with node.running(binding="lock") as agent:
        await locked(node, agent, "p")
        with pytest.raises(RefusalError, match="asks for 2 devices, its grant has 1"):
            await agent.plugin.allocate([("id-0", "id-1")])


async def test_the_lock_is_released_although_the_pod_cannot_be_patched(node: Node) -> None:
    async with node.running(binding="lock") as agent:
        pod = await locked(node, agent, "p")
        fault = node.api.fault(method="PATCH", path="/pods/p", status=500, times=None)
        await node.allocate(agent, pod, "main", "id-0")
        await until(lambda: not node.locked and fault.hits)
        # A younger pod with that name may have it by now: it is not taken from that.
        node.lock(pod)
        seen = fault.hits
        await until(lambda: fault.hits > seen + 1)
        assert node.locked
        node.api.faults.remove(fault)
        await until(lambda: node.says(pod)[PHASE] == "success")


async def test_who_comes_past_the_scheduler_harms_no_pod_that_has_its_cards(node: Node) -> None:
    async with node.running(binding="lock") as agent:
        pod = await locked(node, agent, "p")
        await node.allocate(agent, pod, "main", "id-0")
        await until(lambda: node.says(pod)[PHASE] == "success")
        node.lock(pod)
        with pytest.raises(RefusalError, match="has cards for all its containers"):
            await agent.plugin.allocate([("id-1",)])
        assert agent.pod_status._queue.empty()
        assert node.says(pod)[PHASE] == "success"


async def test_who_comes_past_the_scheduler_harms_no_pod_that_is_not_bound_yet(node: Node) -> None:
    async with node.running(binding="lock") as agent:
        pod = await locked(node, agent, "p", main=[PART], bound_to="")
        with pytest.raises(RefusalError, match="is on node ''"):
            await agent.plugin.allocate([("id-0",)])
        assert agent.pod_status._queue.empty()
        assert node.locked
        assert node.says(pod)[PHASE] == "allocating"


async def test_a_deleted_pod_in_the_lock_serves_no_pod(node: Node) -> None:
    async with node.running(binding="lock") as agent:
        pod = await locked(node, agent, "p")
        node.remove(pod)
        with pytest.raises(RefusalError, match="the pod that its lock names cannot be read"):
            await agent.plugin.allocate([("id-0",)])


async def test_what_the_lock_gave_starts_again_after_a_crash_without_the_api_server(
    node: Node,
) -> None:
    async with node.running(binding="lock") as agent:
        pod = await locked(node, agent, "p")
        await node.allocate(agent, pod, "main", "id-0")
    node.api.fault(times=None, status=503)
    async with node.running(wait=False, binding="lock") as agent:
        await node.start(agent, "id-0")


async def test_a_forged_grant_is_not_served(node: Node) -> None:
    async with node.running(binding="lock") as agent:
        pod = await locked(
            node, agent, "p", main=[PART], annotations={annotation_keys.GRANT_MAC: "v1:x:y"}
        )
        with pytest.raises(RefusalError, match="was not made for this pod"):
            await agent.plugin.allocate([("id-0",)])
        await until(lambda: node.says(pod)[PHASE] == "failed")
        assert node.ledger() == {}


async def test_an_ill_card_is_not_given_by_the_lock_either(node: Node) -> None:
    async with node.running(binding="lock") as agent:
        pod = await locked(node, agent, "p", init=[PART], main=[PART])
        agent.cards.health.probed(OTHER, "it has left the bus")
        await node.allocate(agent, pod, "init", "id-0")
        # Who has begun goes on; who begins does not.
        agent.cards.health.probed(CARD, "it has left the bus")
        await node.allocate(agent, pod, "main", "id-0")
        await until(lambda: not node.locked)
        new = await locked(node, agent, "q")
        with pytest.raises(RefusalError, match="it has left the bus"):
            await agent.plugin.allocate([("id-1",)])
        await until(lambda: node.says(new)[PHASE] == "failed")


async def test_a_container_of_an_older_agent_restarts_with_that_agents_library(node: Node) -> None:
    """Its mounts are fixed in kubelet's checkpoint: library and files beside it, as they were."""
    older = library_path(node.layout, "ab" * 32)
    async with node.running(binding="lock") as agent:
        older.parent.mkdir()
        older.write_bytes(b"looks beside itself")
        pod = await locked(node, agent, "p")
        (answer,) = await agent.plugin.allocate([("id-0",)])
        allocation_id = answer.annotations[layout.ALLOCATION_ANNOTATION]
        beside = node.layout.inside
        mounts = (
            Mount(container_path=f"{beside}/libvgpu.so", host_path=str(older)),
            Mount(
                container_path=f"{beside}/policy",
                host_path=str(node.layout.allocation_folder(allocation_id)),
            ),
        )
        node.checkpoint.add(uid(pod), "main", ["id-0"], replace(answer, mounts=mounts))
    async with node.running(binding="lock") as agent:
        await node.start(agent, "id-0")
        assert older.read_bytes() == b"looks beside itself"
        assert node.limits(allocation_id) == [PART]
        assert node.layout.state(allocation_id).exists()


OTHER_LIST = "hami.io/dcu-devices-to-allocate"
OTHER_DEVICES = {
    TO_ALLOCATE: f"{CARD},NVIDIA,4000,30:;",
    OTHER_LIST: "d,DCU,1,1:;",
    "hami.io/dcu-devices-allocated": "d,DCU,1,1:;",
}


def _pod_of_two_vendors(node: Node) -> Object:
    """Have it signed in form v3: form v1 proves no other vendor's device list."""
    pod = node.pod("p", main=[PART], annotations=OTHER_DEVICES)
    lists = {
        key: text for key, text in pod["metadata"]["annotations"].items() if "-allocated" in key
    }
    value = grant.Grant(uid=uid(pod), node=NODE, devices=lists)
    node.change(pod, {annotation_keys.GRANT_MAC: SIGNING.sign(value.text())})
    return pod


async def test_the_lock_stays_while_another_vendors_plugin_has_yet_to_find_the_pod(
    node: Node,
) -> None:
    async with node.running(binding="lock") as agent:
        pod = _pod_of_two_vendors(node)
        node.change(pod, {PHASE: "allocating"})
        node.lock(pod)
        await node.seen(agent)
        await node.allocate(agent, pod, "main", "id-0")
        await until(lambda: node.says(pod)[TO_ALLOCATE] == ";")
        assert node.locked
        assert node.says(pod)[PHASE] == "allocating"


async def test_a_lock_that_another_plugin_released_is_waited_for(node: Node) -> None:
    async with node.running(binding="lock") as agent:
        pod = _pod_of_two_vendors(node)
        node.change(pod, {PHASE: "success", OTHER_LIST: ";"})
        await node.seen(agent)
        answer = asyncio.create_task(node.allocate(agent, pod, "main", "id-0"))
        await until(lambda: any(r.path.endswith("/nodes/gpu-1") for r in node.api.sent("GET")))
        assert not answer.done()
        node.lock(pod)
        assert (await answer).envs["NVIDIA_VISIBLE_DEVICES"] == CARD
