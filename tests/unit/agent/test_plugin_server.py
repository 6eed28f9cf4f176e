"""Our plugin's socket, called as kubelet calls it (by the tests' own client)."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator
from typing import Any, NoReturn

import grpc
import pytest

from hami.agent.errors import RefusalError
from hami.agent.kubelet import plugin_server
from hami.agent.kubelet.kubelet_api import AllocateResponse, Mount
from hami.agent.kubelet.plugin_server import Streams
from tests.e2e.kubelet_api.device_plugin import MESSAGES, Device, PluginClient
from tests.loop_time import LoopTime
from tests.unit.agent.kubelet_rig import PATIENCE, Listed, Plugin, served, short_folder


@contextlib.asynccontextmanager
async def called(
    plugin: Plugin, streams: Streams | None = None, **limits: float
) -> AsyncIterator[tuple[PluginClient, Any]]:
    with short_folder() as folder:
        handler = plugin_server.plugin_handler(plugin, streams, **limits)
        async with served(folder / "p.sock", handler) as server:
            client = PluginClient(folder / "p.sock")
            try:
                async with asyncio.timeout(PATIENCE):
                    yield client, server
            finally:
                await client.close()


async def options(client: PluginClient) -> tuple[bool, bool]:
    answer = await client._call("GetDevicePluginOptions", MESSAGES["Empty"]())
    return answer.pre_start_required, answer.get_preferred_allocation_available


async def prefer(client: PluginClient, *requests: dict[str, Any]) -> list[list[str]]:
    asked = MESSAGES["PreferredAllocationRequest"](container_requests=requests)
    answer = await client._call("GetPreferredAllocation", asked)
    return [list(one.deviceIDs) for one in answer.container_responses]


async def until_open(streams: Streams, count: int) -> None:
    while streams.open != count:
        await asyncio.sleep(0.005)


@pytest.mark.parametrize("wanted", [(True, True), (True, False), (False, True)])
async def test_the_options_are_the_plugins(wanted: tuple[bool, bool]) -> None:
    plugin = Plugin()
    plugin.pre_start_required, plugin.preferred_allocation = wanted
    async with called(plugin) as (client, _):
        assert await options(client) == wanted


async def test_every_change_is_sent_as_the_whole_list() -> None:
    plugin = Plugin("a", "b")
    async with called(plugin) as (client, _):
        lists = client.devices()
        assert await anext(lists) == (Device("a"), Device("b"))
        plugin.listed.set([Listed("a", healthy=False), Listed("b", numa=1), Listed("c")])
        expected = (Device("a", "Unhealthy"), Device("b", numa_nodes=(1,)), Device("c"))
        assert await anext(lists) == expected
        plugin.listed.set([])
        assert await anext(lists) == ()


async def test_a_burst_of_changes_is_sent_once_and_what_was_taken_back_never() -> None:
    time, plugin = LoopTime(), Plugin("a")
    async with called(plugin) as (client, _):
        lists = client.devices()
        assert await anext(lists) == (Device("a"),)
        for number in range(50):
            plugin.listed.set([Listed(f"{number}")])
        assert await anext(lists) == (Device("49"),)
        plugin.listed.set([Listed("other")])
        plugin.listed.set([Listed("49")])
        await time.forward(1)  # the pause between two lists is over
        plugin.listed.set([Listed("last")])
        assert await anext(lists) == (Device("last"),)


async def test_two_kubelets_hear_the_same_and_one_that_hangs_up_is_forgotten() -> None:
    plugin, streams = Plugin("a"), Streams()
    async with called(plugin, streams) as (client, _):
        first, second = client.devices(), client.devices()
        assert [await anext(first), await anext(second)] == [(Device("a"),)] * 2
        assert streams.open == 2
        plugin.listed.set([Listed("b")])
        assert [await anext(first), await anext(second)] == [(Device("b"),)] * 2
        await client.close()
        await until_open(streams, 0)


async def test_a_list_that_is_not_known_yet_is_waited_for() -> None:
    plugin, streams = Plugin(), Streams()
    plugin.listed = type(plugin.listed)()  # nothing was set
    async with called(plugin, streams) as (client, _):
        waiting = asyncio.ensure_future(anext(client.devices()))
        await until_open(streams, 1)
        assert not waiting.done()
        plugin.listed.set([])
        assert await waiting == ()


async def test_the_servers_end_ends_streams_at_once() -> None:
    streams = Streams()
    async with called(Plugin("a"), streams) as (client, server):
        lists = client.devices()
        await anext(lists)
        await server.stop(None)
        with pytest.raises(grpc.aio.AioRpcError):
            await anext(lists)
        await until_open(streams, 0)


async def test_every_container_of_a_request_is_answered_in_its_order() -> None:
    plugin = Plugin("a", "b", "c")
    plugin.allocating = lambda ids: AllocateResponse(
        envs={"IDS": ",".join(ids)},
        mounts=(Mount("/c", "/h"),),
        annotations={"hami.io/vgpu-token": "t"},
        cdi_devices=("hami.io/vgpu=t",),
    )
    async with called(plugin) as (client, _):
        answers = await client.allocate(["b", "a"], ["c"])
        assert [answer.envs for answer in answers] == [{"IDS": "b,a"}, {"IDS": "c"}]
        assert answers[0].annotations == {"hami.io/vgpu-token": "t"}
        assert answers[0].cdi_devices == ("hami.io/vgpu=t",)
        assert [(m.container_path, m.host_path, m.read_only) for m in answers[0].mounts] == [
            ("/c", "/h", True)
        ]
        await client.pre_start(["b", "a"])
    assert plugin.asked == [("b", "a"), ("c",)]
    assert plugin.started == [frozenset("ab")]


async def test_a_refusal_reaches_kubelet_in_its_own_words() -> None:
    plugin = Plugin("a")

    def refuse(*_: object) -> NoReturn:
        raise RefusalError("pod team/ü", "has no grant", "let hami place it")

    plugin.allocating = refuse
    plugin.starting = refuse
    async with called(plugin) as (client, _):
        for call in (client.allocate(["a"]), client.pre_start(["a"])):
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await call
            assert caught.value.code() is grpc.StatusCode.FAILED_PRECONDITION
            assert caught.value.details() == "hami: pod team/ü: has no grant; let hami place it"


async def test_a_mistake_of_ours_fails_one_call_and_is_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    plugin = Plugin("a")

    def fail(ids: tuple[str, ...]) -> NoReturn:
        raise KeyError(ids[0])

    usual, plugin.allocating = plugin.allocating, fail
    async with called(plugin) as (client, _):
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await client.allocate(["a"])
        assert caught.value.code() is grpc.StatusCode.INTERNAL
        assert "Allocate failed, KeyError: 'a'" in (caught.value.details() or "")
        plugin.allocating = usual
        assert len(await client.allocate(["a"])) == 1
    (record,) = [each for each in caplog.records if each.levelno == logging.ERROR]
    assert record.exc_info is not None


async def test_an_answer_too_few_is_never_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    plugin = Plugin("a")

    async def nothing(_: object) -> list[AllocateResponse]:
        return []

    monkeypatch.setattr(plugin, "allocate", nothing)
    async with called(plugin) as (client, _):
        with pytest.raises(grpc.aio.AioRpcError, match="0 answers to 1 requests"):
            await client.allocate(["a"])


async def test_a_start_that_takes_too_long_is_ended_before_kubelet_does() -> None:
    time, plugin = LoopTime(), Plugin("a")
    plugin.hold = asyncio.Event()
    async with called(plugin, pre_start_limit=20) as (client, _):
        starting = asyncio.create_task(client.pre_start(["a"]))
        while not plugin.started:
            await asyncio.sleep(0.005)
        await time.forward(20)
        with pytest.raises(grpc.aio.AioRpcError, match="PreStartContainer took too long") as caught:
            await starting
        assert caught.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        plugin.hold.set()
        await client.pre_start(["a"])
    assert plugin_server.PRE_START_LIMIT < 30  # kubelet's own


async def test_a_waiting_start_holds_up_nobody() -> None:
    plugin = Plugin("a")
    plugin.hold = asyncio.Event()
    async with called(plugin) as (client, _):
        waiting = asyncio.create_task(client.pre_start(["a"]))
        while not plugin.started:
            await asyncio.sleep(0.005)
        assert len(await client.allocate(["b"], ["c"])) == 2
        assert not waiting.done()
        plugin.hold.set()
        await waiting


async def test_a_preference_is_told_for_every_container() -> None:
    async with called(Plugin()) as (client, _):
        wanted = await prefer(
            client,
            {
                "available_deviceIDs": ["a", "b"],
                "must_include_deviceIDs": ["z"],
                "allocation_size": 2,
            },
            {"available_deviceIDs": ["c"], "allocation_size": 1},
        )
        assert wanted == [["z", "a"], ["c"]]


async def test_a_failing_preference_leaves_the_choice_to_kubelet(
    caplog: pytest.LogCaptureFixture,
) -> None:
    plugin = Plugin()

    def fail(available: tuple[str, ...], *_: object) -> tuple[str, ...]:
        if available == ("a",):
            raise RefusalError("a", "is nobody's")
        return available

    plugin.choosing = fail
    async with called(plugin) as (client, _):
        requests = [{"available_deviceIDs": [id_], "allocation_size": 1} for id_ in "ab"]
        assert await prefer(client, *requests) == [[], ["b"]]
    assert "cannot prefer device ids" in caplog.text
