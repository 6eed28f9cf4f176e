"""The node's binding mode, late or by lock, and the reason for it.

Late binding names a CDI device whose spec does not exist yet at Allocate. kubelet must pass such
names to the runtime (since 1.29), the runtime must read specs from the folder that we write to, and
kubelet's checkpoint must be readable, because it maps a start to its container. All of this is
checked; where one check fails, the node binds by HAMi's lock, and an annotation gives the reason.
See docs/designs/001-late-binding.md.

The checks run at the start, every 30 s, whenever the Node object changes, and when a start finds
the checkpoint unreadable. Until all checks have passed the node binds by its lock.
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
from hami.agent.node_status import NodeStatus
from hami.node.layout import NodeLayout
from hami.wire import objects

_log = logging.getLogger(__name__)

AUTO, LATE, LOCK = "auto", "late", "lock"

_FIRST_KUBELET = (1, 29)
_VERSION = re.compile(r"v?([0-9]+)\.([0-9]+)")

#: Seconds between two checks without a cause.
_CHECK_EVERY = 30.0
#: Seconds that kubelet's first Allocate waits for the first check.
_FIRST_CHECK = 10.0


@dataclasses.dataclass(frozen=True, slots=True)
class Mode:
    late: bool
    #: Why not late, or what speaks against it where `--binding=late` forces it; for people.
    reason: str = ""


class BindingMode:
    """The current mode, kept up to date."""

    def __init__(
        self,
        layout: NodeLayout,
        node: NodeStatus,
        *,
        binding: str,
        runtime_endpoints: Sequence[str],
    ) -> None:
        self._layout = layout
        self._node = node
        self._binding = binding
        #: Sockets, of which one must answer; none: those that runtimes usually have.
        self._runtime_endpoints = runtime_endpoints
        self._requested = asyncio.Event()
        self._decided = asyncio.Event()
        self._handlers: list[Callable[[], None]] = []
        self.mode = Mode(late=False, reason="The agent has just started and has not checked yet.")
        node.add_handler(self._node_changed)

    def add_handler(self, handler: Callable[[], None]) -> None:
        """Call the handler after every change of the mode."""
        self._handlers.append(handler)

    def _node_changed(self, _old: objects.Node | None, _new: objects.Node | None) -> None:
        self.request()

    @property
    def late(self) -> bool:
        return self.mode.late

    @property
    def settled(self) -> bool:
        """Whether the first check is done."""
        return self._decided.is_set()

    async def is_late(self) -> bool:
        """Return the mode for an Allocate; right after the start this waits for the first check.

        A pod that was bound while the previous agent ran has no lock: answered by lock it would
        fail.
        """
        if self._binding == LATE:
            return True  # as configured, whatever is found
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_FIRST_CHECK):
                await self._decided.wait()
        return self.mode.late

    def request(self) -> None:
        """Check again soon."""
        self._requested.set()

    def unreadable(self, error: CheckpointError) -> None:
        """Bind by lock from now on, if this error means that starts cannot be mapped to pods."""
        doubt = checkpoint_doubt(error)
        if doubt and self._binding != LATE:
            self._set(Mode(late=False, reason=doubt))
        self.request()

    async def run(self) -> NoReturn:
        """Check for ever."""
        while True:
            self._requested.clear()
            if self._node.kubelet_version():
                await self.decide()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_CHECK_EVERY):
                    await self._requested.wait()

    async def decide(self) -> None:
        """Check kubelet, runtime and checkpoint, and set the mode."""
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
            # A runtime that is restarting starts no container; it is checked when it answers.
            _log.warning("the runtime does not answer", extra={"error": str(runtime)})
            return
        first = not self.settled
        self._decided.set()
        self._set(
            decide(
                self._binding,
                kubelet_version=self._node.kubelet_version(),
                runtime=runtime,
                reported_runtime=self._node.runtime_version(),
                cdi_dir=str(self._layout.cdi_dir),
                checkpoint_error=unreadable,
            ),
            first=first,
        )

    async def _ask_runtime(self) -> RuntimeStatus:
        if len(self._runtime_endpoints) == 1:
            return await runtime.runtime_status(self._runtime_endpoints[0])
        named = self._runtime_endpoints or runtime.CANDIDATES
        return await runtime.detect(named, reported=self._node.runtime_version())

    def _set(self, mode: Mode, *, first: bool = False) -> None:
        if mode == self.mode and not first:
            return
        self.mode = mode
        _log.info(
            "this node binds late" if mode.late else "this node binds by its lock",
            extra={"reason": mode.reason},
        )
        for handler in self._handlers:
            handler()


def decide(
    binding: str,
    *,
    kubelet_version: str,
    runtime: RuntimeStatus | RuntimeStatusError,
    cdi_dir: str,
    reported_runtime: str = "",
    checkpoint_error: CheckpointError | None = None,
) -> Mode:
    """Return the mode; `binding` is the setting `--binding`.

    `reported_runtime` is kubelet's runtime on the Node object, empty if it is not reported.
    """
    if binding == LOCK:
        return Mode(late=False, reason="--binding=lock is set; set auto to bind late if possible.")
    doubts = [
        doubt
        for doubt in (
            _kubelet(kubelet_version),
            _runtime(runtime, reported_runtime, cdi_dir),
            checkpoint_doubt(checkpoint_error),
        )
        if doubt
    ]
    return Mode(late=binding == LATE or not doubts, reason=" ".join(doubts))


def _kubelet(version: str) -> str:
    found = _VERSION.match(version)
    if found is None:
        return (
            f"kubelet's version {version!r} on the Node object cannot be read, and only v1.29 and "
            "newer pass CDI names to the runtime; set --binding=late if yours does."
        )
    if (int(found[1]), int(found[2])) < _FIRST_KUBELET:
        return (
            f"kubelet {version} is older than v1.29, which is the first to pass CDI names to the "
            "runtime; update kubelet."
        )
    return ""


def _runtime(runtime: RuntimeStatus | RuntimeStatusError, reported: str, cdi_dir: str) -> str:
    if isinstance(runtime, RuntimeStatusError):
        return f"It is not known whether the container runtime supports CDI: {runtime}."
    if not runtime.is_kubelets(reported):
        return (
            f"--runtime-endpoint leads to {runtime}, but kubelet starts containers with "
            f"{reported}; name kubelet's CRI socket."
        )
    if runtime.cdi_disabled:
        return (
            f"{runtime} reports that CDI is off (enableCDI: false); set enable_cdi = true in the "
            "CRI plugin's part of its configuration and restart it."
        )
    if not runtime.cdi_dirs:
        remedy = (
            "containerd has CDI since 1.7; update it."
            if runtime.name == "containerd"
            else f"if you know that it reads {cdi_dir}, set --binding=late."
        )
        return (
            f"{runtime} does not report where it reads CDI specs (no cdiSpecDirs in its status); "
            f"{remedy}"
        )
    if _plain(cdi_dir) not in {_plain(folder) for folder in runtime.cdi_dirs}:
        return (
            f"{runtime} reads CDI specs from {', '.join(runtime.cdi_dirs)}, but hami writes to "
            f"{cdi_dir}; set --cdi-dir to one of those, or add {cdi_dir} to its cdi_spec_dirs."
        )
    return ""


def checkpoint_doubt(error: CheckpointError | None) -> str:
    """Return why a checkpoint error rules late binding out; empty: it does not."""
    # kubelet writes its first checkpoint when a plugin has registered: a missing file is normal.
    if error is None or error.kind not in (Kind.UNREADABLE, Kind.SHAPE):
        return ""
    return f"A start cannot be mapped to its pod: {error}."


def _plain(folder: str) -> str:
    """Normalize a folder: /var/run is a link to /run wherever CDI is used."""
    folder = posixpath.normpath(folder)
    if folder == "/var/run" or folder.startswith("/var/run/"):
        return folder.removeprefix("/var")
    return folder
