"""Pods get device ids in kubelet's order, keep them, and lose them at their end."""

from __future__ import annotations

import asyncio
from typing import NoReturn

import pytest

from hami.agent.errors import AgentError
from hami.agent.kubelet.kubelet_api import AllocateResponse, DeviceSpec, Mount
from hami_sandbox.kubelet.devices.manager import RunOptions
from hami_sandbox.kubelet.devices.pods import AdmissionError, StartError
from sandbox.tests.unit.devices.desk import Desk, FakePlugin, pod
from tests.unit.agent.kubelet_rig import RESOURCE, Listed
from tests.unit.kube.following import until

OTHER = "example.com/other"


class RefusedError(AgentError):
    """As a plugin refuses."""

    def __init__(self) -> None:
        super().__init__("card x", "is full", "")


def refuse(*_: object) -> NoReturn:
    raise RefusedError


async def test_each_container_gets_all_its_ids_in_one_call_init_containers_first(
    desk: Desk,
) -> None:
    plugin = FakePlugin(*"abcdefgh")
    async with desk.manager() as manager, desk.plugin(plugin, manager):
        await desk.admit(manager, pod("p", main=2, none=0, side=("sidecar", 1), other="3"))
        sizes = [[len(ids) for ids in requests] for _, requests in plugin.calls]
        assert sizes == [[1], [2], [3]]
        held = [entry.device_ids for entry in desk.entries().values()]
        assert len(frozenset.union(*held)) == 6


async def test_ids_of_init_containers_are_used_again_but_not_those_of_sidecars(
    desk: Desk,
) -> None:
    plugin = FakePlugin(*"abcd")
    containers = {"one": ("init", 1), "side": ("sidecar", 1), "two": ("init", 2)}
    async with desk.manager() as manager, desk.plugin(plugin, manager):
        await desk.admit(manager, pod("p", main=1, last=2, **containers))
        held = {name: entry.device_ids for (_, name), entry in desk.entries().items()}
    assert held["side"] == held["one"]  # it came after the init container, and keeps it
    assert not held["side"] & (held["two"] | held["main"] | held["last"])
    assert held["main"] < held["two"]
    assert held["two"] - held["main"] < held["last"]
    assert not held["main"] & held["last"]


async def test_no_other_pod_uses_the_ids_of_an_init_container(desk: Desk) -> None:
    async with desk.manager() as manager, desk.plugin(FakePlugin(*"abcd"), manager):
        await desk.admit(manager, pod("p", start=("init", 3), main=1))
        await desk.admit(manager, pod("q", main=1))
        held = desk.entries()
        assert not held["uid-p", "start"].device_ids & held["uid-q", "main"].device_ids


async def test_the_plugin_is_asked_what_it_prefers_and_obeyed_among_the_free(desk: Desk) -> None:
    plugin = FakePlugin(*"abcde")
    plugin.choosing = lambda available, must, size: ("e", "d", "c")
    async with desk.manager() as manager, desk.plugin(plugin, manager):
        await desk.admit(manager, pod("p", start=("init", 1), main=2))
        held = {name: entry.device_ids for (_, name), entry in desk.entries().items()}
        first = held["start"]
        assert first < {"c", "d", "e"}
        assert first < held["main"] < {"c", "d", "e"}
        assert plugin.asked_preference == [
            (frozenset("abcde"), frozenset(), 1),
            (frozenset("abcde"), first, 2),
        ]
        await desk.admit(manager, pod("q", main=3))
        held = {uid: entry.device_ids for (uid, name), entry in desk.entries().items()}
        assert held["uid-q"] == frozenset("abcde") - held["uid-p"]


async def test_a_container_that_restarts_is_only_prepared_again(desk: Desk) -> None:
    plugin = FakePlugin("a", "b")
    async with desk.manager() as manager, desk.plugin(plugin, manager):
        await desk.admit(manager, pod("p", main=2))
        for _ in range(3):
            await manager.pre_start("uid-p", "main")
        ids = frozenset("ab")
        assert plugin.calls == [("Allocate", [ids]), *[("PreStart", ids)] * 3]
        assert manager.run_options("uid-p", "main").annotations == {"answer": "1"}


async def test_the_checkpoint_has_the_answer_before_the_next_container_is_asked_for(
    desk: Desk,
) -> None:
    seen: list[set[str]] = []
    plugin = FakePlugin(*"abc")

    def answer(ids: tuple[str, ...]) -> AllocateResponse:
        seen.append({container for _, container in desk.entries()})
        return AllocateResponse()

    plugin.allocating = answer
    async with desk.manager() as manager, desk.plugin(plugin, manager):
        await desk.admit(manager, pod("p", start=("init", 1), main=1, last=1))
    assert seen == [set(), {"start"}, {"start", "main"}]


async def test_pods_are_admitted_one_after_the_other(desk: Desk) -> None:
    plugin = FakePlugin(*"abcd")
    async with desk.manager() as manager, desk.plugin(plugin, manager):
        plugin.holding = asyncio.Event()
        admitting = [
            asyncio.create_task(desk.admit(manager, pod(name, main=2))) for name in ("p", "q")
        ]
        await until(lambda: plugin.calls)
        assert len(plugin.calls) == 1
        plugin.holding.set()
        await asyncio.gather(*admitting)
        held = desk.entries()
        assert not held["uid-p", "main"].device_ids & held["uid-q", "main"].device_ids


async def test_ids_are_free_when_their_pod_is_no_longer_active(desk: Desk) -> None:
    async with desk.manager() as manager, desk.plugin(FakePlugin("a"), manager):
        first = await desk.admit(manager, pod("p", main=1))
        with pytest.raises(AdmissionError) as refused:
            await desk.admit(manager, pod("q", main=1))
        assert refused.value.message == (
            "Allocate failed due to requested number of devices unavailable for "
            f"{RESOURCE}. Requested: 1, Available: 0, which is unexpected"
        )
        desk.end(first)
        assert set(desk.entries()) == {("uid-p", "main")}  # until the next write
        desk.ready = False
        with pytest.raises(AdmissionError, match="Available: 0"):
            await desk.admit(manager, pod("r", main=1))
        desk.ready = True
        await desk.admit(manager, pod("s", main=1))
        assert set(desk.entries()) == {("uid-s", "main")}


async def test_what_a_rejected_pod_was_given_is_free_again(desk: Desk) -> None:
    plugin = FakePlugin("a", "b")
    async with desk.manager() as manager, desk.plugin(plugin, manager):
        rejected = pod("p", main=1, greedy=2)
        with pytest.raises(AdmissionError, match="Requested: 2, Available: 1"):
            await desk.admit(manager, rejected)
        desk.end(rejected)
        await desk.admit(manager, pod("q", main=2))
        assert desk.entries()["uid-q", "main"].device_ids == {"a", "b"}


async def test_a_pod_under_admission_is_active_whatever_others_say(desk: Desk) -> None:
    async with desk.manager() as manager, desk.plugin(FakePlugin("a", "b"), manager):
        await manager.admit(pod("p", main=1, last=1))
        assert set(desk.entries()) == {("uid-p", "main"), ("uid-p", "last")}


async def test_what_a_plugin_refuses_is_told_in_gos_words_and_leaves_the_ids_free(
    desk: Desk,
) -> None:
    plugin = FakePlugin("a")
    answer, plugin.allocating = plugin.allocating, refuse
    async with desk.manager() as manager, desk.plugin(plugin, manager):
        with pytest.raises(AdmissionError) as refused:
            await desk.admit(manager, pod("p", main=1))
        assert refused.value.reason == "UnexpectedAdmissionError"
        assert refused.value.message == (
            "Allocate failed due to rpc error: code = FailedPrecondition desc = hami: card x: "
            "is full, which is unexpected"
        )
        plugin.allocating = answer
        await desk.admit(manager, pod("q", main=1))


async def test_a_start_that_a_plugin_refuses_can_be_tried_again(desk: Desk) -> None:
    plugin = FakePlugin("a")
    plugin.starting = refuse
    async with desk.manager() as manager, desk.plugin(plugin, manager):
        await desk.admit(manager, pod("p", main=1))
        with pytest.raises(StartError) as refused:
            await manager.pre_start("uid-p", "main")
        assert str(refused.value) == (
            "device plugin PreStartContainer rpc failed with err: rpc error: "
            "code = FailedPrecondition desc = hami: card x: is full"
        )
        plugin.starting = lambda: None
        await manager.pre_start("uid-p", "main")


async def test_while_its_plugin_is_away_a_container_waits_and_a_new_pod_fails(desk: Desk) -> None:
    async with desk.manager() as manager:
        async with desk.plugin(FakePlugin("a", "b"), manager):
            await desk.admit(manager, pod("p", main=1))
        await until(lambda: manager.allocatable() == {RESOURCE: 0})
        with pytest.raises(StartError, match=f"endpoint {RESOURCE} has been stopped"):
            await manager.pre_start("uid-p", "main")
        with pytest.raises(AdmissionError, match="no healthy devices present; cannot allocate"):
            await desk.admit(manager, pod("q", main=1))
        async with desk.plugin(plugin := FakePlugin("a", "b"), manager):
            await manager.pre_start("uid-p", "main")
            assert plugin.started == [desk.entries()["uid-p", "main"].device_ids]


async def test_a_call_that_is_under_way_when_its_plugin_goes_fails(desk: Desk) -> None:
    plugin = FakePlugin("a")
    plugin.hold = asyncio.Event()
    async with desk.manager() as manager:
        async with desk.plugin(plugin, manager):
            await desk.admit(manager, pod("p", main=1))
            starting = asyncio.create_task(manager.pre_start("uid-p", "main"))
            await until(lambda: plugin.started)
        with pytest.raises(StartError, match="PreStartContainer rpc failed with err: rpc error"):
            await starting


async def test_a_call_that_is_under_way_when_kubelet_stops_fails_and_cancels_nobody(
    desk: Desk,
) -> None:
    plugin = FakePlugin("a")
    plugin.hold = asyncio.Event()
    async with desk.plugin(plugin):
        async with desk.manager() as manager:
            await until(manager.allocatable)
            await desk.admit(manager, pod("p", main=1))
            starting = asyncio.create_task(manager.pre_start("uid-p", "main"))
            await until(lambda: plugin.started)
        with pytest.raises(StartError, match="client connection is closing"):
            await starting
        plugin.hold.set()


async def test_a_device_that_fails_keeps_its_container_from_being_admitted_again(
    desk: Desk,
) -> None:
    plugin = FakePlugin("a", "b")
    async with desk.manager() as manager, desk.plugin(plugin, manager):
        first = await desk.admit(manager, pod("p", main=1))
        (held,) = desk.entries()["uid-p", "main"].device_ids
        plugin.listed.set([Listed("a", held != "a"), Listed("b", held != "b")])
        await until(lambda: manager.allocatable() == {RESOURCE: 1})
        with pytest.raises(AdmissionError, match="previously allocated devices are no longer heal"):
            await manager.admit(first)


async def test_another_number_than_was_given_is_refused(desk: Desk) -> None:
    async with desk.manager() as manager, desk.plugin(FakePlugin("a", "b"), manager):
        await desk.admit(manager, pod("p", main=1))
        with pytest.raises(AdmissionError) as refused:
            await desk.admit(manager, pod("p", main=2))
        assert (
            f'pod "uid-p" container "main" changed request for resource "{RESOURCE}" from 1 to 2'
            in refused.value.message
        )


async def test_a_resource_that_no_plugin_has_is_none_of_the_device_manager(desk: Desk) -> None:
    plugin = FakePlugin("a", pre_start=False)
    async with desk.manager() as manager:
        await desk.admit(manager, pod("p", main=1))
        await manager.pre_start("uid-p", "main")
        assert manager.run_options("uid-p", "main") == RunOptions()
        async with desk.plugin(plugin, manager):
            # The plugin came after the pod: kubelet makes up for it at the start.
            await manager.pre_start("uid-p", "main")
            assert manager.run_options("uid-p", "main").envs == {"IDS": "a"}


async def test_who_was_never_admitted_cannot_start(desk: Desk) -> None:
    async with desk.manager() as manager:
        with pytest.raises(StartError, match="was never admitted"):
            await manager.pre_start("uid-x", "main")


async def test_a_container_gets_the_answers_of_all_its_plugins(desk: Desk) -> None:
    answer = AllocateResponse(
        envs={"A": "1", "B": "first"},
        mounts=(Mount("/in", "/out"),),
        devices=(DeviceSpec("/dev/x", "/dev/y"),),
        cdi_devices=("x.com/y=1",),
    )
    plugins = {resource: FakePlugin("a", resource=resource) for resource in (RESOURCE, OTHER)}
    plugins[RESOURCE].answering = answer
    plugins[OTHER].answering = AllocateResponse(
        envs={"B": "second"}, mounts=(Mount("/in", "/other"),), cdi_devices=("x.com/y=2",)
    )
    both = pod("p", main=1)
    both["spec"]["containers"][0]["resources"]["limits"][OTHER] = "1"
    async with (
        desk.manager() as manager,
        desk.plugin(plugins[RESOURCE], manager),
        desk.plugin(plugins[OTHER], manager, name="other"),
    ):
        await desk.admit(manager, both)
        assert manager.run_options("uid-p", "main") == RunOptions(
            envs={"A": "1", "B": "first"},
            mounts=answer.mounts,
            devices=answer.devices,
            cdi_devices=("x.com/y=1", "x.com/y=2"),
        )
