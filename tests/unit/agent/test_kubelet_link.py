"""The agent stays registered, whatever happens to kubelet and the sockets."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import pathlib
import socket
import sys
from collections.abc import AsyncIterator, Iterator

import pytest
import uvloop

from hami.agent.kubelet import registration
from hami.agent.kubelet.registration import UNWATCHED_AFTER
from hami.agent.kubelet.registration import Registration as KubeletLink
from hami.node.layout import NodeLayout
from tests.e2e.kubelet_api import device_plugin
from tests.e2e.kubelet_api.device_plugin import Device, Registration
from tests.unit.agent.kubelet_rig import (
    PATIENCE,
    RESOURCE,
    Kubelet,
    Listed,
    Plugin,
    served,
    short_folder,
)


@pytest.fixture
def layout() -> Iterator[NodeLayout]:
    with short_folder() as folder:
        yield NodeLayout(kubelet_dir=folder)


def own(layout: NodeLayout) -> pathlib.Path:
    return layout.device_plugins / "hami.sock"


class Clock:
    """Moves only when the test moves it."""

    now = 1000.0

    def __call__(self) -> float:
        return self.now


class CountedLink(KubeletLink):
    """Counts how often it has looked at the sockets."""

    looks = 0

    async def _check(self) -> None:
        await super()._check()
        self.looks += 1

    async def look_again(self, times: int = 5) -> None:
        """Wait for so many more whole looks."""
        wanted = self.looks + 1 + times  # one may be under way
        async with asyncio.timeout(PATIENCE):
            while self.looks < wanted:
                await asyncio.sleep(0.005)


@contextlib.asynccontextmanager
async def linked(
    layout: NodeLayout, plugin: Plugin | None = None, clock: Clock | None = None
) -> AsyncIterator[CountedLink]:
    link = CountedLink(
        layout, plugin or Plugin("a"), "hami", check_every=0.01, clock=clock or Clock()
    )
    running = asyncio.create_task(link.run())
    try:
        yield link
    finally:
        await link.stop()
        await running


@contextlib.asynccontextmanager
async def serving(kubelet: Kubelet) -> AsyncIterator[None]:
    await kubelet.start()
    try:
        yield
    finally:
        await kubelet.stop()


@contextlib.asynccontextmanager
async def another_process(path: pathlib.Path) -> AsyncIterator[None]:
    """Let a process of its own take a socket's place, and listen there."""
    program = """
import os, socket, sys
listener = socket.socket(socket.AF_UNIX)
listener.bind(sys.argv[1] + ".new")
listener.listen(1000)
os.rename(sys.argv[1] + ".new", sys.argv[1])
print(flush=True)
sys.stdin.read()
"""
    pipe = asyncio.subprocess.PIPE
    other = await asyncio.create_subprocess_exec(
        sys.executable, "-c", program, str(path), stdin=pipe, stdout=pipe
    )
    try:
        assert other.stdout is not None
        await other.stdout.readline()
        yield
    finally:
        other.kill()
        await other.wait()


async def until(link: KubeletLink, problem: str) -> None:
    async with asyncio.timeout(PATIENCE):
        while problem not in link.problem or (not problem and link.problem):
            await asyncio.sleep(0.005)


async def test_it_registers_and_is_listened_to(layout: NodeLayout) -> None:
    kubelet, plugin = Kubelet(layout), Plugin("a", "b")
    async with serving(kubelet), linked(layout, plugin) as link:
        registration, client = await kubelet.plugin()
        assert registration == Registration(
            "hami.sock", RESOURCE, pre_start_required=True, preferred_allocation=True
        )
        assert await kubelet.listed() == (Device("a"), Device("b"))
        plugin.listed.set([Listed("a", healthy=False)])
        assert await kubelet.listed() == (Device("a", "Unhealthy"),)
        await client.pre_start(["a"])
        await until(link, "")
        assert link.registered
    assert not link.registered
    assert not own(layout).exists()


@pytest.mark.parametrize("clear", [True, False])
async def test_every_new_kubelet_is_registered_with(layout: NodeLayout, *, clear: bool) -> None:
    kubelet = Kubelet(layout)
    await kubelet.start()
    async with linked(layout):
        for _restart in range(4):
            _, client = await kubelet.plugin()
            assert await kubelet.listed() == (Device("a"),)
            assert len(await client.allocate(["a"])) == 1
            await kubelet.stop()
            await kubelet.start(clear=clear)
        await kubelet.plugin()
        await kubelet.stop()


async def test_a_removed_socket_of_ours_is_made_again(layout: NodeLayout) -> None:
    kubelet = Kubelet(layout)
    async with serving(kubelet), linked(layout):
        for _time in range(3):
            await kubelet.plugin()
            own(layout).unlink()
        _, client = await kubelet.plugin()
        assert len(await client.allocate(["a"])) == 1


async def test_a_kubelet_that_does_not_listen_is_registered_with_again(layout: NodeLayout) -> None:
    kubelet, clock = Kubelet(layout, listens=False), Clock()
    async with serving(kubelet), linked(layout, clock=clock):
        for _time in range(3):
            await kubelet.plugin()
            while kubelet.registrations.empty():
                clock.now += 2 * UNWATCHED_AFTER
                await asyncio.sleep(0.005)


async def test_a_kubelet_that_listens_is_left_alone(layout: NodeLayout) -> None:
    kubelet, clock = Kubelet(layout), Clock()
    async with serving(kubelet), linked(layout, clock=clock) as link:
        await kubelet.plugin()
        await kubelet.listed()
        await until(link, "")
        for _look in range(10):
            clock.now += 2 * UNWATCHED_AFTER
            await link.look_again(1)
        assert kubelet.registrations.empty()


async def test_a_missing_kubelet_is_logged_once_and_waited_for(
    layout: NodeLayout, caplog: pytest.LogCaptureFixture
) -> None:
    async with linked(layout) as link:
        await until(link, f"{layout.kubelet_socket} is missing")
        await link.look_again()
        logged = [each for each in caplog.records if each.levelno >= logging.WARNING]
        assert len(logged) == 1
        assert not link.registered
        kubelet = Kubelet(layout)
        async with serving(kubelet):
            await kubelet.plugin()
            await until(link, "")
        layout.kubelet_socket.unlink(missing_ok=True)
        await until(link, "is missing")


async def test_a_kubelet_that_refuses_is_named_and_asked_again(layout: NodeLayout) -> None:
    kubelet = Kubelet(layout)
    kubelet.refusing = "no such resource"
    async with serving(kubelet), linked(layout) as link:
        await until(link, "kubelet did not register nvidia.com/gpu: ")
        assert "no such resource" in link.problem
        kubelet.refusing = ""
        await kubelet.plugin()
        await until(link, "")


async def test_a_dead_kubelets_socket_is_named_and_the_next_one_taken(layout: NodeLayout) -> None:
    layout.device_plugins.mkdir(parents=True)
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(layout.kubelet_socket))
    async with linked(layout) as link:
        await until(link, "UNAVAILABLE")
        kubelet = Kubelet(layout)
        async with serving(kubelet):
            await kubelet.plugin()
            await until(link, "")


async def test_a_dead_agents_socket_is_taken_over(layout: NodeLayout) -> None:
    kubelet = Kubelet(layout)
    async with serving(kubelet):
        with socket.socket(socket.AF_UNIX) as dead:
            dead.bind(str(own(layout)))
        async with linked(layout):
            await kubelet.plugin()
            assert await kubelet.listed() == (Device("a"),)


async def test_another_agent_on_our_socket_is_not_fought(layout: NodeLayout) -> None:
    kubelet, clock = Kubelet(layout), Clock()
    async with serving(kubelet), linked(layout, clock=clock) as link:
        await kubelet.plugin()
        await until(link, "")
        async with another_process(own(layout)):
            await until(link, f"another process serves on {own(layout)}")
            taken = own(layout).stat().st_ino
            await link.look_again()
            assert own(layout).stat().st_ino == taken
        clock.now += 60
        await kubelet.plugin()
        await until(link, "")


async def test_the_newer_agent_serves_after_a_restart_of_kubelet(layout: NodeLayout) -> None:
    clock = Clock()
    async with linked(layout, clock=clock) as link:
        kubelet = Kubelet(layout)
        async with serving(kubelet):
            await kubelet.plugin()
            async with another_process(own(layout)):
                await until(link, "another process serves")
            # kubelet removes the newer agent's socket; that agent makes another one soon.
            own(layout).unlink(missing_ok=True)
            await link.look_again()
            assert not own(layout).exists()
            async with another_process(own(layout)):
                clock.now += 60
                await link.look_again()
                assert kubelet.registrations.empty()
                assert link.taken_over


async def test_an_agent_that_ends_leaves_the_socket_of_its_successor(layout: NodeLayout) -> None:
    kubelet = Kubelet(layout)
    async with serving(kubelet), linked(layout) as link:
        await kubelet.plugin()
        async with another_process(own(layout)):
            await until(link, "another process serves")
            taken = own(layout).stat().st_ino
            await link.stop()
            assert own(layout).stat().st_ino == taken


async def test_an_agent_whose_successor_died_has_its_place_again_without_kubelet(
    layout: NodeLayout,
) -> None:
    kubelet, clock = Kubelet(layout), Clock()
    async with linked(layout, clock=clock) as link:
        async with serving(kubelet):
            await kubelet.plugin()
            async with another_process(own(layout)):
                await until(link, "another process serves")
        clock.now += 60
        await until(link, "is missing")
        assert not link.taken_over


async def test_an_agent_that_was_too_busy_to_be_recognised_is_itself_again(
    layout: NodeLayout, monkeypatch: pytest.MonkeyPatch
) -> None:
    kubelet = Kubelet(layout)
    async with serving(kubelet), linked(layout) as link:
        await kubelet.plugin()
        await until(link, "")
        with monkeypatch.context() as busy:
            busy.setattr(registration, "_listener", lambda _path: 0)
            own(layout).chmod(0o600)
            await until(link, "another process serves")
        await until(link, "")
        assert not link.taken_over


async def test_a_socket_of_ours_with_another_mode_is_still_ours(layout: NodeLayout) -> None:
    kubelet = Kubelet(layout)
    async with serving(kubelet), linked(layout) as link:
        await kubelet.plugin()
        await until(link, "")
        taken = own(layout).stat()
        own(layout).chmod(0o600)
        await link.look_again()
        assert link.problem == ""
        assert own(layout).stat().st_ino == taken.st_ino
        assert kubelet.registrations.empty()  # not again
        assert await kubelet.listed() == (Device("a"),)
    assert not own(layout).exists()


async def test_a_path_that_no_socket_can_have_is_named(tmp_path: pathlib.Path) -> None:
    layout = NodeLayout(kubelet_dir=tmp_path / ("x" * 100))
    layout.device_plugins.mkdir(parents=True)
    layout.kubelet_socket.touch()
    async with linked(layout) as link:
        await until(link, "has at most 107 bytes; choose a shorter --kubelet-dir")


async def test_a_stop_before_the_start_ends_it_at_once(layout: NodeLayout) -> None:
    link = KubeletLink(layout, Plugin(), "hami")
    await link.stop()
    async with asyncio.timeout(PATIENCE):
        await link.run()
    assert not layout.device_plugins.exists()


async def test_a_stop_does_not_wait_for_a_kubelet_that_hangs(
    layout: NodeLayout, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registration, "_REGISTER_TIMEOUT", 1e6)
    asked = asyncio.Event()

    async def hang(_: Registration) -> None:
        asked.set()
        await asyncio.Event().wait()

    layout.device_plugins.mkdir(parents=True)
    async with (
        asyncio.timeout(PATIENCE),
        served(layout.kubelet_socket, device_plugin.registration_handler(hang)),
        linked(layout),
    ):
        await asked.wait()
    assert not own(layout).exists()


async def test_a_cancelled_link_leaves_no_socket(layout: NodeLayout) -> None:
    kubelet = Kubelet(layout)
    async with serving(kubelet):
        running = asyncio.create_task(KubeletLink(layout, Plugin("a"), "hami").run())
        await kubelet.plugin()
        assert own(layout).exists()
        running.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await running
        assert not own(layout).exists()


def test_it_runs_on_the_loop_that_our_processes_have(layout: NodeLayout) -> None:
    async def case() -> None:
        kubelet = Kubelet(layout)
        async with serving(kubelet), linked(layout):
            _, client = await kubelet.plugin()
            assert await kubelet.listed() == (Device("a"),)
            assert len(await client.allocate(["a"])) == 1

    uvloop.run(case())
