"""Our plugin on its socket, registered with whatever kubelet there is.

A new kubelet removes every socket in its folder, ours too, and makes its own anew: then we serve on
a new one and register again. It can also forget us without that (it hangs up when a stream breaks):
a kubelet that does not listen to our devices for a while is registered with again. Nothing here
gives up: what is missing is said once and looked at again.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

from hami.agent.kubelet import grpc, kubelet_api
from hami.agent.kubelet.plugin_server import Plugin, Streams, plugin_handler
from hami.node.layout import NodeLayout

_log = logging.getLogger(__name__)

#: Seconds between two looks at the sockets.
LOOK_EVERY = 0.2
#: Seconds that kubelet may leave our list of devices alone before it is registered with again.
DEAF_AFTER = 5.0
#: Seconds for kubelet's answer: it calls us back before it gives it.
_REGISTER_TIMEOUT = 10.0
#: Longest path of a socket, in bytes.
_LONGEST = 107

_Mark = tuple[int, int]


class Registration:
    """Serves a plugin on `<name>.sock` in kubelet's folder while `run` runs."""

    def __init__(
        self,
        layout: NodeLayout,
        plugin: Plugin,
        name: str,
        *,
        look_every: float = LOOK_EVERY,
        deaf_after: float = DEAF_AFTER,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._kubelet = layout.kubelet_socket
        self._own = layout.device_plugins / f"{name}.sock"
        self._plugin = plugin
        self._look_every = look_every
        self._deaf_after = deaf_after
        self._clock = clock
        self._streams = Streams()
        self._server: Any = None
        #: Which socket is ours, and whose kubelet we are registered with.
        self._own_mark: _Mark | None = None
        self._kubelet_mark: _Mark | None = None
        #: When kubelet was last seen to listen.
        self._heard = 0.0
        self._stopping = asyncio.Event()
        self._running: asyncio.Future[None] | None = None
        #: What is missing; empty while we are registered.
        self.problem = "hami has not registered with kubelet yet"

    @property
    def resource(self) -> str:
        return self._plugin.resource

    @property
    def registered(self) -> bool:
        return not self.problem

    async def run(self) -> None:
        """Serve and register, again and again, until `stop` or a cancellation."""
        self._running = asyncio.get_running_loop().create_future()
        # A stop does not wait for a kubelet that hangs.
        tasks = [
            asyncio.create_task(each) for each in (self._keep_looking(), self._stopping.wait())
        ]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()  # a mistake of ours is raised here
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
            self.problem = "hami has stopped serving kubelet"
            try:
                await self._close()
            finally:
                self._running.set_result(None)

    async def stop(self) -> None:
        """End `run`; when this returns kubelet's streams have ended and our socket is gone."""
        self._stopping.set()
        if self._running is not None:
            await self._running

    async def _keep_looking(self) -> NoReturn:
        while True:
            await self._look()
            await asyncio.sleep(self._look_every)

    async def _look(self) -> None:
        try:
            self._lack(await self._step())
        except grpc.RpcError as error:
            self._kubelet_mark = None
            self._lack(f"kubelet did not register {self._plugin.resource}: {grpc.why(error)}")
        except (OSError, RuntimeError) as error:  # grpc raises RuntimeError for a socket
            self._lack(f"hami cannot serve on {self._own}: {error}")

    def _lack(self, problem: str) -> None:
        if problem and problem != self.problem:
            _log.warning(
                "kubelet is not connected",
                extra={"resource": self._plugin.resource, "error": problem},
            )
        self.problem = problem

    async def _step(self) -> str:
        """Do what is to be done; return what is missing."""
        kubelet = _mark(self._kubelet)
        if self._server is not None and (now := _mark(self._own)) != self._own_mark:
            if now is not None and _answers(self._own):
                # Taking it back would make two agents fight; the other one ends or we do.
                self._kubelet_mark = None
                return f"another process serves on {self._own}: only one agent may run on a node"
            await self._close()
        if kubelet is None:
            self._kubelet_mark = None
            return (
                f"kubelet's socket {self._kubelet} is missing: kubelet is down, or --kubelet-dir "
                "names another folder than its own"
            )
        if self._server is None:
            await self._open()
        if kubelet != self._kubelet_mark or self._deaf():
            await self._register()
            self._kubelet_mark = kubelet
            self._heard = self._clock()
        return ""

    def _deaf(self) -> bool:
        if self._streams.open:
            self._heard = self._clock()
        return self._clock() - self._heard > self._deaf_after

    async def _open(self) -> None:
        if len(bytes(self._own)) > _LONGEST:
            raise OSError(f"the path of a socket has at most {_LONGEST} bytes; move --kubelet-dir")
        self._streams = Streams()
        server = grpc.server(self._own, plugin_handler(self._plugin, self._streams))
        # The socket is there from now on, whatever becomes of the start.
        self._server, self._own_mark, self._kubelet_mark = server, _mark(self._own), None
        await server.start()

    async def _close(self) -> None:
        """Hang up at once; grpc removes the socket."""
        server, self._server = self._server, None
        if server is not None:
            await server.stop(None)
            if _mark(self._own) == self._own_mark:
                self._own.unlink(missing_ok=True)
        self._own_mark = self._kubelet_mark = None

    async def _register(self) -> None:
        request = {
            "version": kubelet_api.VERSION,
            "endpoint": self._own.name,
            "resource_name": self._plugin.resource,
            "options": {
                "pre_start_required": self._plugin.pre_start_required,
                "get_preferred_allocation_available": self._plugin.preferred_allocation,
            },
        }
        async with grpc.channel(self._kubelet) as channel:
            await kubelet_api.REGISTER.on(channel)(request, timeout=_REGISTER_TIMEOUT)
        _log.info(
            "registered with kubelet",
            extra={"resource": self._plugin.resource, "socket": str(self._own)},
        )


def _mark(path: Path) -> _Mark | None:
    """Tell one socket from the next at the same path; numbers of inodes alone come again."""
    try:
        status = path.stat()
    except FileNotFoundError:
        return None
    return status.st_ino, status.st_ctime_ns


def _answers(path: Path) -> bool:
    """Tell whether somebody listens on a socket."""
    with socket.socket(socket.AF_UNIX) as probe:
        probe.setblocking(False)  # noqa: FBT003 - its only form
        try:
            probe.connect(str(path))
        except BlockingIOError:  # a queue that is full is somebody's
            return True
        except OSError:
            return False
    return True
