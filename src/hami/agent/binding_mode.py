"""How this node binds now, late or by its lock, and why (D4, D5).

Looked at when we start, when kubelet or the runtime may be another (the node's status says so, or
kubelet's socket is new), and when kubelet's checkpoint cannot be read. The last word is cautious:
until everything is proven the node has a lock.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Sequence
from typing import NoReturn

from hami.agent import capability
from hami.agent.capability import Mode
from hami.agent.kubelet import checkpoint, runtime_status
from hami.agent.kubelet.checkpoint import CheckpointError
from hami.agent.kubelet.runtime_status import RuntimeStatus, RuntimeStatusError
from hami.node.layout import NodeLayout

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
        if self._binding == capability.LATE:
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
        doubt = capability.checkpoint_doubt(error)
        if doubt and self._binding != capability.LATE:
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
        if silent and self.late and self._binding == capability.AUTO:
            # One that is being restarted starts nothing; what it can is seen when it answers.
            _log.warning("the runtime does not answer now", extra={"error": str(runtime)})
            return
        first = not self.settled
        self._decided.set()
        self._take(
            capability.decide(
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
            return await runtime_status.status(self._runtime_endpoints[0])
        named = self._runtime_endpoints or runtime_status.CANDIDATES
        return await runtime_status.detect(candidates=named)

    def _take(self, mode: Mode, *, first: bool = False) -> None:
        if mode == self.mode and not first:
            return
        self.mode = mode
        _log.info(
            "this node binds late" if mode.late else "this node binds by its lock",
            extra={"reason": mode.reason},
        )
        self._on_change()
