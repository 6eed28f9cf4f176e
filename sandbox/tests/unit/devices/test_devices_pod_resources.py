"""PodResources lists the devices of active pods, without init containers."""

from __future__ import annotations

import asyncio

import pytest

from sandbox.tests.unit.devices.desk import Desk, FakePlugin, pod
from tests.e2e.kubelet_api import pod_resources
from tests.e2e.kubelet_api.pod_resources import PodDevices, PodResourcesError
from tests.unit.agent.kubelet_rig import RESOURCE, Listed
from tests.unit.kube.following import until


async def listed(desk: Desk) -> dict[tuple[str, str], PodDevices]:
    """Ask as others do; by pod and container."""
    rows = await asyncio.to_thread(
        pod_resources.list_pod_resources, desk.layout.pod_resources_socket
    )
    assert {row.resource for row in rows} <= {RESOURCE}
    return {(row.pod, row.container): row for row in rows}


async def test_containers_are_told_with_their_ids_but_no_plain_init_containers(desk: Desk) -> None:
    async with desk.manager() as manager, desk.plugin(FakePlugin(*"abcdef"), manager):
        await desk.admit(
            manager, pod("p", start=("init", 1), side=("sidecar", 1), main=2, without=0)
        )
        rows = await listed(desk)
        assert set(rows) == {("p", "side"), ("p", "main")}
        assert rows["p", "main"].namespace == "team"
        assert not rows["p", "main"].numa_nodes
        assert rows["p", "main"].device_ids == desk.entries()["uid-p", "main"].device_ids
        assert len(rows["p", "side"].device_ids) == 1


async def test_ids_come_with_their_numa_nodes_after_a_restart_too(desk: Desk) -> None:
    plugin = FakePlugin()
    plugin.listed.set([Listed("a", numa=0), Listed("b", numa=1), Listed("c", healthy=False)])
    first = pod("p", main=2)
    async with desk.plugin(plugin):
        for _ in range(2):
            async with desk.manager() as manager:
                await until(lambda: manager.allocatable() == {RESOURCE: 2})
                await desk.admit(manager, first)
                row = (await listed(desk))["p", "main"]
                assert row.device_ids == {"a", "b"}
                assert row.numa_nodes == {0, 1}
                allocatable = await asyncio.to_thread(
                    pod_resources.allocatable_devices, desk.layout.pod_resources_socket
                )
                assert allocatable == {RESOURCE: {"a", "b"}}


async def test_a_pod_that_is_no_longer_active_is_not_told_and_its_ids_are_free(desk: Desk) -> None:
    async with desk.manager() as manager, desk.plugin(FakePlugin("a"), manager):
        first = await desk.admit(manager, pod("p", main=1))
        desk.end(first)
        assert await listed(desk) == {}
        await desk.admit(manager, pod("q", main=1))
        assert set(await listed(desk)) == {("q", "main")}


async def test_nobody_is_forgotten_before_all_pods_are_known(desk: Desk) -> None:
    first = pod("p", main=1)
    plugin = FakePlugin("a")
    async with desk.plugin(plugin):
        async with desk.manager() as manager:
            await until(manager.allocatable)
            await desk.admit(manager, first)
        desk.active.clear()
        desk.ready = False
        async with desk.manager() as manager:
            assert await listed(desk) == {}
            await until(lambda: manager.allocatable() == {RESOURCE: 1})
            await desk.admit(manager, first)
            assert set(await listed(desk)) == {("p", "main")}
    assert len(plugin.asked) == 1


async def test_one_pod_can_be_asked_for(desk: Desk) -> None:
    async with desk.manager() as manager, desk.plugin(FakePlugin("a"), manager):
        await desk.admit(manager, pod("p", main=1))
        ask = pod_resources.get_pod_resources
        socket = desk.layout.pod_resources_socket
        (row,) = await asyncio.to_thread(ask, socket, "team", "p")
        assert row.container == "main"
        assert row.device_ids == {"a"}
        with pytest.raises(PodResourcesError, match="pod x in namespace team not found"):
            await asyncio.to_thread(ask, socket, "team", "x")
