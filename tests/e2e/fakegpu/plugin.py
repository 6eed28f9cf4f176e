"""NVIDIA's device plugin as containers notice it: a card per request.

It offers one card of the node, several times over. With CDI the answer names the card in the node's
NVIDIA spec; without, it sets NVIDIA_VISIBLE_DEVICES as the plugin does for NVIDIA's own runtime.

It runs in a thread of the tests and registers once: a kubelet that restarts forgets it.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Iterator, Sequence

import grpc

from hami_sandbox import gpus
from tests.e2e.cluster.machines import Machine
from tests.e2e.kubelet_api import device_plugin
from tests.e2e.kubelet_api.device_plugin import Allocation, Device, Registration

SOCKET = "fakegpu.sock"
REPLICAS = 8
VISIBLE = "NVIDIA_VISIBLE_DEVICES"
STARTED_S = 30
STOPPED_S = 5  # for calls under way; kubelet's watch of the devices has ended before


class CardPlugin:
    pre_start_required = False

    def __init__(self, card: str, *, cdi: bool) -> None:
        self._card = card
        self._cdi = cdi
        self.listed = asyncio.Event()
        self.ended = asyncio.Event()

    async def devices(self) -> AsyncIterator[Sequence[Device]]:
        yield [Device(f"{self._card}::{index}") for index in range(REPLICAS)]
        self.listed.set()
        await self.ended.wait()  # the list never changes

    async def allocate(self, requests: Sequence[frozenset[str]]) -> Sequence[Allocation]:
        return [self._answer() for _ in requests]

    async def pre_start(self, device_ids: frozenset[str]) -> None:
        raise NotImplementedError("kubelet was told not to call this")

    def _answer(self) -> Allocation:
        if self._cdi:
            return Allocation(cdi_devices=(f"{gpus.CDI_KIND}={self._card}",))
        return Allocation(envs={VISIBLE: self._card})


@contextlib.contextmanager
def serving(plugin: CardPlugin, machine: Machine, resource: str) -> Iterator[None]:
    """Serve on the node's socket for as long as the block runs."""
    folder = machine.root / str(device_plugin.FOLDER).lstrip("/")
    started = threading.Event()
    failed: list[BaseException] = []
    runner = asyncio.Runner(loop_factory=asyncio.new_event_loop)  # not the loop of this thread
    loop = runner.get_loop()

    async def serve() -> None:
        server = grpc.aio.server()
        server.add_generic_rpc_handlers((device_plugin.plugin_handler(plugin),))
        server.add_insecure_port(f"unix:{folder / SOCKET}")
        await server.start()
        try:
            await device_plugin.register(
                folder / device_plugin.KUBELET_SOCKET, Registration(SOCKET, resource)
            )
            await asyncio.wait_for(plugin.listed.wait(), STARTED_S)
            started.set()
            await plugin.ended.wait()
        finally:
            await server.stop(STOPPED_S)  # grpc removes the socket

    def run() -> None:
        try:
            with runner:
                runner.run(serve())
        except BaseException as error:  # noqa: BLE001 (the root of a thread: raised below)
            failed.append(error)
        finally:
            started.set()

    thread = threading.Thread(target=run, name=f"plugin of {machine.name}")
    thread.start()
    try:
        started.wait()
        if failed:
            raise failed[0]
        yield
    finally:
        with contextlib.suppress(RuntimeError):  # it failed and closed the loop itself
            loop.call_soon_threadsafe(plugin.ended.set)
        thread.join()
