"""The plugin on its socket, and its registration with kubelet, again and again.

A new kubelet removes every socket in its folder and creates its own anew. So we look at both: when
kubelet's is another one, or ours is gone, we serve on a new one and register again.
"""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import logging
import pathlib
from collections.abc import AsyncIterator, Sequence

import grpc

from tests.e2e.bare_plugin.binding import LateBinding
from tests.e2e.kubelet_api import device_plugin
from tests.e2e.kubelet_api.checkpoint import CheckpointError
from tests.e2e.kubelet_api.device_plugin import Allocation, Device, RefusedError, Registration
from tests.kubeapi.client import ApiError

SOCKET = "bare.sock"
LOOK_EVERY = 0.2
SWEEP_EVERY = 5.0
GRACE = 10.0
#: Seconds that calls under way may take to end.
ENDING = 1.0

_FAILURES = (ApiError, CheckpointError, OSError, http.client.HTTPException)
_log = logging.getLogger(__name__)


class BarePlugin:
    """What kubelet asks of a plugin."""

    pre_start_required = True

    def __init__(self, binding: LateBinding, count: int) -> None:
        self._binding = binding
        self._devices = [Device(f"vgpu-{index:03}") for index in range(count)]
        self._ended = asyncio.Event()

    async def devices(self) -> AsyncIterator[Sequence[Device]]:
        yield self._devices
        await self._ended.wait()  # the list never changes; the call ends with the server

    def end_lists(self) -> None:
        """End the open calls: of one that it has to cancel grpc logs a traceback."""
        self._ended.set()
        self._ended = asyncio.Event()

    async def allocate(self, requests: Sequence[frozenset[str]]) -> Sequence[Allocation]:
        # Here and now: kubelet admits one pod after the other and waits for this answer, and while
        # a hundred containers start, changing threads costs more than making a folder.
        return [self._binding.allocate() for _ in requests]

    async def pre_start(self, device_ids: frozenset[str]) -> None:
        try:
            await asyncio.to_thread(self._binding.prepare, device_ids)
        except _FAILURES as error:
            raise RefusedError(f"bare plugin, {', '.join(sorted(device_ids))}: {error}") from error


async def run(
    binding: LateBinding,
    folder: pathlib.Path,
    resource: str,
    count: int,
    stop: asyncio.Event,
) -> None:
    """Serve until `stop` is set; afterwards our socket is gone."""
    plugin = BarePlugin(binding, count)
    registration = Registration(SOCKET, resource, pre_start_required=True)
    sweeping = asyncio.create_task(_sweep(binding, stop))
    while not stop.is_set():
        if _identity(folder / device_plugin.KUBELET_SOCKET) is not None:
            await _serve(plugin, folder, registration, stop)
        await _pause(stop, LOOK_EVERY)
    await sweeping


async def _serve(
    plugin: BarePlugin, folder: pathlib.Path, registration: Registration, stop: asyncio.Event
) -> None:
    """Serve and register; return when either socket is no longer what it was."""
    kubelet = folder / device_plugin.KUBELET_SOCKET
    own = folder / SOCKET
    server = grpc.aio.server()
    server.add_generic_rpc_handlers((device_plugin.plugin_handler(plugin),))
    before = _identity(kubelet)
    server.add_insecure_port(f"unix:{own}")
    await server.start()
    try:
        sockets = (before, _identity(own))
        await device_plugin.register(kubelet, registration)
        _log.info("registered %s", registration.resource)
        while not stop.is_set() and (_identity(kubelet), _identity(own)) == sockets:
            await _pause(stop, LOOK_EVERY)
    except grpc.aio.AioRpcError as error:
        _log.warning("kubelet did not register us: %s", error.details())
    finally:
        plugin.end_lists()
        await server.stop(ENDING)  # grpc removes the socket


def _identity(socket: pathlib.Path) -> tuple[int, int] | None:
    """Tell one socket from the next at the same path; inode numbers alone come again."""
    try:
        status = socket.stat()
    except FileNotFoundError:
        return None
    return status.st_ino, status.st_ctime_ns


async def _sweep(binding: LateBinding, stop: asyncio.Event) -> None:
    while not await _pause(stop, SWEEP_EVERY):
        try:
            await asyncio.to_thread(binding.sweep, GRACE)
        except _FAILURES as error:
            _log.warning("not swept: %s", error)


async def _pause(stop: asyncio.Event, seconds: float) -> bool:
    """Wait; tell whether that was the end."""
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(stop.wait(), seconds)
    return stop.is_set()
