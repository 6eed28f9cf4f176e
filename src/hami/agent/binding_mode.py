"""The node's binding mode, late or by lock, and why.

Whether this node can bind late (D4), decided from what kubelet and the runtime say.
Late binding names a CDI device whose spec does not exist yet at Allocate. kubelet must hand such
names to the runtime (since 1.29), the runtime must look for specs where we write them, and we must
be able to read kubelet's checkpoint, because it says whose a start is. All of that is proven, not
hoped: where it is not, the node binds under HAMi's lock, and an administrator reads why.

How this node binds now, late or by its lock, and why (D4, D5).
Looked at when we start, when kubelet or the runtime may be another (the node's status says so, or
kubelet's socket is new), and when kubelet's checkpoint cannot be read. The last word is cautious:
until everything is proven the node has a lock.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
import posixpath
import re
from collections.abc import Callable, Sequence
from typing import NoReturn

from hami.agent.kubelet import checkpoint, runtime
from hami.agent.kubelet.checkpoint import CheckpointError, Kind
from hami.agent.kubelet.runtime import RuntimeStatus, RuntimeStatusError
from hami.node.layout import NodeLayout

AUTO, LATE, LOCK = "auto", "late", "lock"

_FIRST = (1, 29)
_VERSION = re.compile(r"v?([0-9]+)\.([0-9]+)")


@dataclasses.dataclass(frozen=True, slots=True)
class Mode:
    late: bool
    #: Why not late, or what speaks against it where late is as told; sentences for people.
    reason: str = ""


def decide(
    binding: str,
    *,
    kubelet_version: str,
    runtime: RuntimeStatus | RuntimeStatusError,
    cdi_dir: str,
    checkpoint_error: CheckpointError | None = None,
) -> Mode:
    """Return how containers get their cards; `binding` is the setting."""
    if binding == LOCK:
        return Mode(late=False, reason="--binding=lock says so; set auto to bind late if possible.")
    doubts = [
        doubt
        for doubt in (
            _kubelet(kubelet_version),
            _runtime(runtime, cdi_dir),
            checkpoint_doubt(checkpoint_error),
        )
        if doubt
    ]
    return Mode(late=binding == LATE or not doubts, reason=" ".join(doubts))


def _kubelet(version: str) -> str:
    found = _VERSION.match(version)
    if found is None:
        return (
            f"kubelet's version {version!r} on the node object cannot be read, and only v1.29 and "
            "newer hand CDI names to the runtime; set --binding=late if yours does."
        )
    if (int(found[1]), int(found[2])) < _FIRST:
        return (
            f"kubelet {version} is older than v1.29, which is the first to hand CDI names to the "
            "runtime; update kubelet."
        )
    return ""


def _runtime(runtime: RuntimeStatus | RuntimeStatusError, cdi_dir: str) -> str:
    if isinstance(runtime, RuntimeStatusError):
        return f"It is not known whether the container runtime supports CDI: {runtime}."
    if runtime.cdi_disabled:
        return (
            f"{runtime} says that CDI is off (enableCDI: false); set enable_cdi = true in the CRI "
            "plugin's part of its configuration and restart it."
        )
    if not runtime.cdi_dirs:
        remedy = (
            "containerd has CDI since 1.7; update it."
            if runtime.name == "containerd"
            else f"if you know that it reads {cdi_dir}, set --binding=late."
        )
        return (
            f"{runtime} does not say where it looks for CDI specs (no cdiSpecDirs in its status); "
            f"{remedy}"
        )
    if _plain(cdi_dir) not in {_plain(folder) for folder in runtime.cdi_dirs}:
        return (
            f"{runtime} looks for CDI specs in {', '.join(runtime.cdi_dirs)}, but we write ours to "
            f"{cdi_dir}; set --cdi-dir to one of those, or add ours to its cdi_spec_dirs."
        )
    return ""


def checkpoint_doubt(error: CheckpointError | None) -> str:
    """Tell what an unreadable checkpoint means for late binding; empty: nothing."""
    # kubelet writes its first when a plugin has registered; no file yet is no doubt.
    if error is None or error.kind not in (Kind.UNREADABLE, Kind.SHAPE):
        return ""
    return f"Nothing says whose a start is: {error}."


def _plain(folder: str) -> str:
    """Write a folder in one way: /var/run is a link to /run wherever CDI is at home."""
    folder = posixpath.normpath(folder)
    if folder == "/var/run" or folder.startswith("/var/run/"):
        return folder.removeprefix("/var")
    return folder


_log = logging.getLogger(__name__)

#: Seconds between two looks without a cause.
_LOOK_EVERY = 30.0
#: Seconds that kubelet waits for the first look.
_FIRST_LOOK = 10.0


class BindingMode:
    def __init__(
        self,
        layout: NodeLayout,
        *,
        binding: str,
        runtime_endpoints: Sequence[str],
        kubelet_version: Callable[[], str],
        on_change: Callable[[], None],
    ) -> None:
        self._layout = layout
        self._binding = binding
        #: Sockets, of which one must answer; none: those that runtimes usually have.
        self._runtime_endpoints = runtime_endpoints
        self._kubelet_version = kubelet_version
        self._on_change = on_change
        self._look = asyncio.Event()
        self.mode = Mode(late=False, reason="The agent has just started and has not looked yet.")
        self._decided = asyncio.Event()

    @property
    def late(self) -> bool:
        return self.mode.late

    @property
    def settled(self) -> bool:
        """Whether we have looked at all."""
        return self._decided.is_set()

    async def is_late(self) -> bool:
        """Tell how kubelet is to be answered; right after the start that takes a moment.

        A pod that was bound while the last agent ran has no lock, and would be lost without that.
        """
        if self._binding == LATE:
            return True  # as told, whatever is found
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_FIRST_LOOK):
                await self._decided.wait()
        return self.mode.late

    def look(self) -> None:
        """Look again soon."""
        self._look.set()

    def unreadable(self, error: CheckpointError) -> None:
        """Bind by the lock from now on, if nobody can tell whose a start is."""
        doubt = checkpoint_doubt(error)
        if doubt and self._binding != LATE:
            self._take(Mode(late=False, reason=doubt))
        self.look()

    async def run(self) -> NoReturn:
        while True:
            self._look.clear()
            if self._kubelet_version():
                await self.decide()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_LOOK_EVERY):
                    await self._look.wait()

    async def decide(self) -> None:
        try:
            runtime: RuntimeStatus | RuntimeStatusError = await self._ask_runtime()
        except RuntimeStatusError as error:
            runtime = error
        unreadable: CheckpointError | None = None
        try:
            checkpoint.read(self._layout.checkpoint)
        except CheckpointError as error:
            unreadable = error
        silent = isinstance(runtime, RuntimeStatusError) and unreadable is None
        if silent and self.late and self._binding == AUTO:
            # One that is being restarted starts nothing; what it can is seen when it answers.
            _log.warning("the runtime does not answer now", extra={"error": str(runtime)})
            return
        first = not self.settled
        self._decided.set()
        self._take(
            decide(
                self._binding,
                kubelet_version=self._kubelet_version(),
                runtime=runtime,
                cdi_dir=str(self._layout.cdi_dir),
                checkpoint_error=unreadable,
            ),
            first=first,
        )

    async def _ask_runtime(self) -> RuntimeStatus:
        if len(self._runtime_endpoints) == 1:
            return await runtime.runtime_status(self._runtime_endpoints[0])
        named = self._runtime_endpoints or runtime.CANDIDATES
        return await runtime.detect(candidates=named)

    def _take(self, mode: Mode, *, first: bool = False) -> None:
        if mode == self.mode and not first:
            return
        self.mode = mode
        _log.info(
            "this node binds late" if mode.late else "this node binds by its lock",
            extra={"reason": mode.reason},
        )
        self._on_change()
