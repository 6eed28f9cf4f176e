"""Keep the node's annotations as the vendors' device plugins do.

A plugin looks at its node every 30 seconds: it writes its register where that differs, and any text
without `Requesting` over the scheduler's handshake. At the end the registers are removed, because
no card is left behind them; real cards would stay.
"""

from __future__ import annotations

import asyncio
import datetime as dt
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import NoReturn

from hami.kube import errors, paths
from hami.kube.client import Client
from hami.simulation.cards import VendorCards
from hami.wire import codec, node_marks, objects
from hami.wire import errors as wire_errors

_log = logging.getLogger(__name__)

#: Seconds between two looks at the node, and after one that failed.
EVERY_S = 30.0
AFTER_ERROR_S = 1.0
_TIMEOUT = 5.0


class NodeAnnotations:
    """Writes what all vendors of a node register."""

    def __init__(
        self,
        client: Client,
        node: str,
        vendors: Sequence[VendorCards],
        *,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        now: Callable[[], dt.datetime] = dt.datetime.now,
    ) -> None:
        self._client = client
        self._node = node
        self._vendors = vendors
        self._sleep = sleep
        self._now = now
        #: Why the node does not show the cards; empty: it does.
        self.problem = "the node's annotations are not written yet"

    async def run(self) -> NoReturn:
        """Write, again and again; end by cancellation."""
        while True:
            try:
                await self.write()
                self.problem = ""
            except (errors.KubeError, wire_errors.WireError) as error:
                self.problem = f"cannot write the annotations of node {self._node}: {error}"
                _log.warning("cannot annotate our node, retrying", extra={"error": str(error)})
            await self._sleep(AFTER_ERROR_S if self.problem else EVERY_S)

    async def write(self) -> None:
        """Write what differs, once."""
        body = await self._client.get(paths.nodes(self._node), timeout=_TIMEOUT)
        node = codec.decode(body, objects.Node, what=f"node {self._node}")
        changes: dict[str, str | None] = {}
        for each in self._vendors:
            register = each.register()
            changes |= {k: v for k, v in register.items() if node.annotations.get(k) != v}
            handshake = each.vendor.annotations.handshake
            if handshake and each.plugin.answers_handshake:
                value = node.annotations.get(handshake)
                if value is None or not node_marks.handshake_answered(value):
                    changes[handshake] = node_marks.handshake_answer(self._now())
        if changes:
            await self._patch(changes)
            _log.info("wrote annotations", extra={"keys": sorted(changes)})

    async def withdraw(self) -> None:
        """Remove the registers; what cannot be removed is logged."""
        keys = {key: None for each in self._vendors for key in each.register()}
        try:
            if keys:
                await self._patch(keys)
        except errors.KubeError as error:
            _log.warning(
                "cannot remove the registers of simulated cards; remove them by hand",
                extra={"keys": sorted(keys), "error": str(error)},
            )

    async def _patch(self, changes: dict[str, str | None] | dict[str, None]) -> None:
        patch = codec.encode({"metadata": {"annotations": changes}})
        await self._client.patch(paths.nodes(self._node), patch, timeout=_TIMEOUT)
