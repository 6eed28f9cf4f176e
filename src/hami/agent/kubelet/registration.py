"""Our plugin on its socket, registered with the current kubelet.

A new kubelet removes every socket in its folder, ours too, and creates its own again: then we serve
on a new one and register again. It can also forget us without that (it disconnects when a stream
breaks): if no kubelet watches our devices for a while, we register again. Nothing here gives up:
a problem is logged once and checked again.
"""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import socket
import struct
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

from hami.agent.kubelet import grpc, kubelet_api
from hami.agent.kubelet.plugin_server import Plugin, Streams, plugin_handler
from hami.node.layout import NodeLayout

_log = logging.getLogger(__name__)

#: Seconds between two checks of the sockets.
CHECK_EVERY = 0.2
#: Seconds without a kubelet that watches our devices after which we register again.
UNWATCHED_AFTER = 5.0
#: Seconds without an agent in our place after which it has ended.
_ENDED_AFTER = 2.0
#: Seconds for kubelet's answer: it calls us back before it answers.
_REGISTER_TIMEOUT = 10.0
#: Longest path of a socket, in bytes.
_LONGEST = 107

#: struct ucred: pid, uid, gid.
_CREDENTIALS = struct.Struct("iii")

_Mark = tuple[int, int]


class Registration:
    """Serves a plugin on `<name>.sock` in kubelet's folder while `run` runs."""

    def __init__(
        self,
        layout: NodeLayout,
        plugin: Plugin,
        name: str,
        *,
        check_every: float = CHECK_EVERY,
        unwatched_after: float = UNWATCHED_AFTER,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._kubelet = layout.kubelet_socket
        self._own = layout.device_plugins / f"{name}.sock"
        self._plugin = plugin
        self._check_every = check_every
        self._unwatched_after = unwatched_after
        self._clock = clock
        self._streams = Streams(self._notify)
        self._server: Any = None
        #: Our socket, and that of the kubelet that we are registered with.
        self._own_mark: _Mark | None = None
        self._kubelet_mark: _Mark | None = None
        #: When kubelet last watched our devices.
        self._watched_at = 0.0
        self._stopping = asyncio.Event()
        self._running: asyncio.Future[None] | None = None
        #: Why we are not registered; empty: we are.
        self.problem = "hami has not registered with kubelet yet"
        #: Whether another agent serves in our place: a newer one, in an update with maxSurge.
        self.taken_over = False
        #: When that agent last served.
        self._replaced_at = 0.0
        self._handlers: list[Callable[[], None]] = []
        self._notified = (False, False)

    @property
    def resource(self) -> str:
        return self._plugin.resource

    @property
    def registered(self) -> bool:
        return not self.problem

    @property
    def watched(self) -> bool:
        """Whether kubelet has our devices: only then can it take up a pod with cards."""
        return self.registered and self._streams.open > 0

    def add_handler(self, handler: Callable[[], None]) -> None:
        """Call the handler after every change of `watched` and `taken_over`."""
        self._handlers.append(handler)

    async def run(self) -> None:
        """Serve and register, again and again, until `stop` or a cancellation."""
        self._running = asyncio.get_running_loop().create_future()
        # A stop does not wait for a kubelet that hangs.
        tasks = [
            asyncio.create_task(each) for each in (self._keep_checking(), self._stopping.wait())
        ]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()  # raises an unexpected error of ours
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
        """End `run`; when this returns kubelet's streams have ended and our socket is removed."""
        self._stopping.set()
        if self._running is not None:
            await self._running

    async def _keep_checking(self) -> NoReturn:
        while True:
            await self._check()
            await asyncio.sleep(self._check_every)

    def _notify(self) -> None:
        now = (self.watched, self.taken_over)
        if now != self._notified:
            self._notified = now
            for handler in self._handlers:
                handler()

    async def _check(self) -> None:
        await self._try_step()
        self._notify()

    async def _try_step(self) -> None:
        try:
            self._set_problem(await self._step())
        except grpc.RpcError as error:
            self._kubelet_mark = None
            self._set_problem(
                f"kubelet did not register {self._plugin.resource}: {grpc.why(error)}"
            )
        except (OSError, RuntimeError) as error:  # grpc raises RuntimeError for a socket
            self._set_problem(f"hami cannot serve on {self._own}: {error}")

    def _set_problem(self, problem: str) -> None:
        if problem and problem != self.problem:
            _log.warning(
                "not registered with kubelet",
                extra={"resource": self._plugin.resource, "error": problem},
            )
        self.problem = problem

    async def _step(self) -> str:
        """Serve or register where needed; return the problem, empty: none."""
        kubelet = _mark(self._kubelet)
        if self._server is not None and (now := _mark(self._own)) != self._own_mark:
            listener = _listener(self._own) if now is not None else None
            if listener == os.getpid():  # still ours: its mode or its owner was changed
                self._own_mark, self.taken_over = now, False
            elif listener is not None or self._is_succeeded():
                # Replacing its socket would make two agents fight; one of them must end.
                self.taken_over = True
                self._kubelet_mark = None
                self._replaced_at = self._clock() if listener is not None else self._replaced_at
                return f"another process serves on {self._own}: only one agent may run on a node"
            else:
                self.taken_over = False
                await self._close()
        if kubelet is None:
            self._kubelet_mark = None
            return (
                f"kubelet's socket {self._kubelet} is missing: kubelet is down, or --kubelet-dir "
                "names another folder than its own"
            )
        if self._server is None:
            await self._open()
        if kubelet != self._kubelet_mark or self._is_unwatched():
            await self._register()
            self._kubelet_mark = kubelet
            self._watched_at = self._clock()
        return ""

    def _is_succeeded(self) -> bool:
        """Whether another agent served a moment ago: after a new kubelet it serves again."""
        return self.taken_over and self._clock() - self._replaced_at <= _ENDED_AFTER

    def _is_unwatched(self) -> bool:
        if self._streams.open:
            self._watched_at = self._clock()
        return self._clock() - self._watched_at > self._unwatched_after

    async def _open(self) -> None:
        if len(bytes(self._own)) > _LONGEST:
            raise OSError(
                f"the path of a socket has at most {_LONGEST} bytes; choose a shorter --kubelet-dir"
            )
        self._streams = Streams(self._notify)
        # Made under another name, which is the one that grpc removes at the end: by then the socket
        # at our path may be another agent's.
        draft = self._own.with_name(f".{secrets.token_hex(4)}")
        server = grpc.server(draft, plugin_handler(self._plugin, self._streams))
        draft.rename(self._own)
        # The socket exists from now on, also if the start fails.
        self._server, self._own_mark, self._kubelet_mark = server, _mark(self._own), None
        await server.start()

    async def _close(self) -> None:
        """Disconnect at once, and remove the socket if it is ours."""
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
    """Identify a socket among those at the same path over time; inode numbers are reused."""
    try:
        status = path.stat()
    except FileNotFoundError:
        return None
    return status.st_ino, status.st_ctime_ns


def _listener(path: Path) -> int | None:
    """Return the pid of the process that listens on a socket; None: no process does.

    0: a process that this PID namespace does not show, or one whose queue is full.
    """
    with socket.socket(socket.AF_UNIX) as probe:
        probe.setblocking(False)  # noqa: FBT003 - its only form
        try:
            probe.connect(str(path))
        except BlockingIOError:
            return 0
        except OSError:
            return None
        credentials = probe.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
        return int(_CREDENTIALS.unpack(credentials)[0])
