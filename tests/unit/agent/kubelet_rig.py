"""A stand-in for kubelet, by the tests' own half of its API, and a plugin that is easy to drive."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import pathlib
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from typing import Any

import grpc

from hami.agent.kubelet.kubelet_api import AllocateResponse
from hami.agent.kubelet.plugin_server import DeviceList
from hami.node.layout import NodeLayout
from tests.e2e.kubelet_api import device_plugin
from tests.e2e.kubelet_api.device_plugin import PluginClient, Registration

PATIENCE = 60
RESOURCE = "nvidia.com/gpu"


@dataclasses.dataclass(frozen=True)
class Listed:
    id: str
    healthy: bool = True
    numa: int | None = None


class Plugin:
    """Answers with what the test put in."""

    resource = RESOURCE
    pre_start_required = True
    preferred_allocation = True

    def __init__(self, *ids: str) -> None:
        self.listed: DeviceList[Listed] = DeviceList(pause=0.01)
        self.listed.set([Listed(id_) for id_ in ids])
        self.asked: list[tuple[str, ...]] = []
        self.started: list[frozenset[str]] = []
        self.allocating: Callable[[tuple[str, ...]], AllocateResponse] = lambda ids: (
            AllocateResponse(envs={"IDS": ",".join(ids)})
        )
        self.starting: Callable[[], None] = lambda: None
        self.hold: asyncio.Event | None = None
        self.choosing: Callable[[tuple[str, ...], tuple[str, ...], int], tuple[str, ...]] = (
            lambda available, must, size: (*must, *available)[:size]
        )

    def devices(self) -> AsyncIterator[Sequence[Listed]]:
        return self.listed.watch()

    async def allocate(self, requests: list[tuple[str, ...]]) -> list[AllocateResponse]:
        self.asked += requests
        return [self.allocating(ids) for ids in requests]

    async def pre_start(self, device_ids: frozenset[str]) -> None:
        self.started.append(device_ids)
        if self.hold is not None:
            await self.hold.wait()
        self.starting()

    async def preferred(
        self, available: tuple[str, ...], must_include: tuple[str, ...], size: int
    ) -> tuple[str, ...]:
        return self.choosing(available, must_include, size)


class Kubelet:
    """Does with plugins what kubelet does: removes sockets, takes registrations, calls back."""

    def __init__(self, layout: NodeLayout, *, listens: bool = True) -> None:
        self.folder = layout.device_plugins
        self.folder.mkdir(parents=True, exist_ok=True)
        self.registrations: asyncio.Queue[Registration] = asyncio.Queue()
        #: What the plugin's stream said last.
        self.lists: asyncio.Queue[tuple[device_plugin.Device, ...]] = asyncio.Queue()
        self.refusing = ""
        self._listens = listens
        self._server: Any = None
        self._client: PluginClient | None = None
        self._listening: asyncio.Task[None] | None = None

    async def start(self, *, tidy: bool = True) -> None:
        """Serve; a real kubelet is tidy: it removes every socket, those of plugins too."""
        for left in self.folder.glob("*.sock"):
            if tidy:
                left.unlink()
        self._server = grpc.aio.server()
        handler = device_plugin.registration_handler(self._registered)
        self._server.add_generic_rpc_handlers((handler,))
        self._server.add_insecure_port(f"unix:{self.folder / 'kubelet.sock'}")
        await self._server.start()

    async def stop(self) -> None:
        await self._hang_up()
        await self._server.stop(None)

    async def plugin(self) -> tuple[Registration, PluginClient]:
        """Wait until a plugin has registered."""
        async with asyncio.timeout(PATIENCE):
            registration = await self.registrations.get()
        assert self._client is not None
        return registration, self._client

    async def listed(self) -> tuple[device_plugin.Device, ...]:
        async with asyncio.timeout(PATIENCE):
            return await self.lists.get()

    async def _registered(self, registration: Registration) -> None:
        if self.refusing:
            raise AssertionError(self.refusing)
        await self._hang_up()
        self._client = PluginClient(self.folder / registration.endpoint)
        assert await self._client.pre_start_required() == registration.pre_start_required
        if self._listens:
            self._listening = asyncio.create_task(self._listen(self._client))
        self.registrations.put_nowait(registration)

    async def _listen(self, client: PluginClient) -> None:
        with contextlib.suppress(grpc.aio.AioRpcError):
            async for devices in client.devices():
                self.lists.put_nowait(devices)

    async def _hang_up(self) -> None:
        if self._client is not None:
            await self._client.close()
        if self._listening is not None:
            self._listening.cancel()
            await asyncio.wait([self._listening])


@contextlib.contextmanager
def short_folder() -> Iterator[pathlib.Path]:
    """Give a folder whose path leaves room for a socket's; pytest's own does not always."""
    with tempfile.TemporaryDirectory(prefix="hami-") as folder:
        yield pathlib.Path(folder)


@contextlib.asynccontextmanager
async def served(socket: pathlib.Path, *handlers: Any) -> AsyncIterator[Any]:
    """Serve handlers on a socket."""
    server = grpc.aio.server()
    server.add_generic_rpc_handlers(handlers)
    server.add_insecure_port(f"unix:{socket}")
    await server.start()
    try:
        yield server
    finally:
        await server.stop(None)
