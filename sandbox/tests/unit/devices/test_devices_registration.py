"""Plugins come, list their devices, go and come back; the node's figures follow."""

from __future__ import annotations

import logging
import socket

import grpc
import pytest

from hami.agent.kubelet import checkpoint
from hami_sandbox.errors import SandboxError
from hami_sandbox.kubelet.devices import endpoint
from hami_sandbox.kubelet.devices.manager import DeviceManager
from hami_sandbox.kubelet.devices.plugins import is_extended
from sandbox.tests.unit.devices.desk import Desk, FakePlugin, pod
from tests.e2e.kubelet_api import device_plugin
from tests.e2e.kubelet_api.device_plugin import Registration
from tests.loop_time import LoopTime
from tests.unit.agent.kubelet_rig import RESOURCE, Listed
from tests.unit.kube.following import until


@pytest.mark.parametrize(
    ("resource", "fits"),
    [
        ("nvidia.com/gpu", True),
        ("nvidia.com/mig-1g.10gb", True),
        ("gpu", False),
        ("kubernetes.io/gpu", False),
        ("x.kubernetes.io/gpu", False),
        ("requests.nvidia.com/gpu", False),
        ("Nvidia.com/gpu", False),
        ("nvidia.com/", False),
        ("nvidia.com/a/b", False),
        ("nvidia.com/" + "g" * 63, True),
        ("nvidia.com/" + "g" * 64, False),
    ],
)
def test_a_plugins_resource_is_a_qualified_name_of_somebody_else(
    resource: str, *, fits: bool
) -> None:
    assert is_extended(resource) is fits


@pytest.mark.parametrize(
    ("registration", "text"),
    [
        (
            Registration("x.sock", RESOURCE, version="v1alpha1"),
            (
                'requested API version "v1alpha1" is not supported by kubelet. '
                'Supported version is ["v1beta1"]'
            ),
        ),
        (Registration("x.sock", "gpu"), 'the ResourceName "gpu" is invalid'),
        (
            Registration("x.sock", RESOURCE),
            "failed to dial device plugin: context deadline exceeded",
        ),
    ],
)
async def test_a_registration_that_cannot_be_is_answered_as_kubelet_does(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, registration: Registration, text: str
) -> None:
    monkeypatch.setattr(endpoint, "DIAL_LIMIT", 0.05)
    async with desk.manager() as manager:
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await device_plugin.register(desk.layout.kubelet_socket, registration)
        assert refused.value.code() is grpc.StatusCode.UNKNOWN
        assert refused.value.details() == text
        assert manager.capacity() == {}


async def test_a_new_kubelet_removes_sockets_and_nothing_else(desk: Desk) -> None:
    folder = desk.layout.device_plugins
    (folder / "folder").mkdir(parents=True)
    (folder / "file").touch()
    for name in ("old.sock", "kubelet.sock"):
        with socket.socket(socket.AF_UNIX) as left:
            left.bind(str(folder / name))
    before = desk.layout.kubelet_socket.stat()
    async with desk.manager():
        assert {path.name for path in folder.iterdir()} == {"folder", "file", "kubelet.sock"}
        assert desk.layout.kubelet_socket.stat().st_ctime_ns != before.st_ctime_ns


async def test_lists_make_capacity_and_allocatable(desk: Desk) -> None:
    plugin = FakePlugin("a", "b", "c")
    async with desk.manager() as manager, desk.plugin(plugin, manager):
        assert manager.capacity() == manager.allocatable() == {RESOURCE: 3}
        heard = desk.notices
        plugin.listed.set([Listed("a"), Listed("b", healthy=False)])
        await until(lambda: manager.capacity() == {RESOURCE: 2})
        assert manager.allocatable() == {RESOURCE: 1}
        assert desk.notices > heard
        assert checkpoint.read(desk.layout.checkpoint).registered == {RESOURCE: {"a"}}


async def test_a_plugin_that_goes_leaves_its_capacity_for_a_while(desk: Desk) -> None:
    async with desk.manager() as manager:
        async with desk.plugin(FakePlugin("a", "b"), manager):
            pass
        await until(lambda: manager.allocatable() == {RESOURCE: 0})
        assert manager.capacity() == {RESOURCE: 2}
        # kubelet does not write that down.
        assert checkpoint.read(desk.layout.checkpoint).registered == {RESOURCE: {"a", "b"}}


async def test_after_its_grace_a_plugin_that_stays_away_is_forgotten(desk: Desk) -> None:
    async with desk.manager(stop_grace=0.05) as manager:
        async with desk.plugin(FakePlugin("a"), manager):
            pass
        await until(lambda: manager.capacity() == {RESOURCE: 0})
        assert manager.allocatable() == {RESOURCE: 0}
        assert checkpoint.read(desk.layout.checkpoint).registered == {}
        async with desk.plugin(FakePlugin("a"), manager):
            assert manager.capacity() == {RESOURCE: 1}


async def test_the_grace_ends_when_a_plugin_is_back(
    desk: Desk, caplog: pytest.LogCaptureFixture
) -> None:
    time = LoopTime()
    async with desk.manager(stop_grace=300) as manager:
        async with desk.plugin(FakePlugin("a"), manager):
            pass
        await until(lambda: manager.allocatable() == {RESOURCE: 0})
        async with desk.plugin(FakePlugin("a", "b"), manager):
            await time.forward(301)  # the grace would have ended by now
            assert manager.capacity() == {RESOURCE: 2}
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]


async def test_what_an_earlier_kubelet_knew_is_forgotten_as_well(desk: Desk) -> None:
    async with desk.manager() as manager, desk.plugin(FakePlugin("a"), manager):
        pass
    async with desk.manager(stop_grace=0.05) as manager:
        assert manager.capacity() == {RESOURCE: 0}
        await until(lambda: not checkpoint.read(desk.layout.checkpoint).registered)


async def test_who_registers_again_takes_the_place_of_his_former_self(desk: Desk) -> None:
    first, second = FakePlugin("a"), FakePlugin("b", "c")
    async with (
        desk.manager() as manager,
        desk.plugin(first, manager) as link,
        desk.plugin(second, name="second"),
    ):
        await until(lambda: manager.capacity() == {RESOURCE: 2})
        await until(lambda: not link._streams.open)
        first.listed.set([Listed("z")])
        await desk.admit(manager, pod("p", main=2))
        assert second.asked
        assert not first.asked
        assert manager.capacity() == {RESOURCE: 2}


async def test_how_a_plugin_wants_to_be_treated_it_says_when_asked(desk: Desk) -> None:
    """What the registration itself says of it is not looked at."""
    plugin = FakePlugin("a", "b", pre_start=False, preferred=False)
    async with desk.manager() as manager, desk.plugin(plugin) as link:
        await until(lambda: link.registered)
        claims = Registration(
            "fake.sock", RESOURCE, pre_start_required=True, preferred_allocation=True
        )
        await device_plugin.register(desk.layout.kubelet_socket, claims)
        await until(lambda: manager.allocatable() == {RESOURCE: 2})
        await desk.admit(manager, pod("p", main=1))
        await manager.pre_start("uid-p", "main")
        assert not plugin.asked_preference
        assert not plugin.started


async def test_a_path_that_is_too_long_is_said(desk: Desk) -> None:
    folder = desk.layout.kubelet_dir / ("x" * 90)
    manager = DeviceManager(folder, active_pods=frozenset)
    with pytest.raises(SandboxError, match="more than 107 bytes"):
        await manager.start()
    await manager.stop()
