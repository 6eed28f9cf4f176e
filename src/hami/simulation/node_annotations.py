"""Keep the node's annotations as the vendors' device plugins do.

A plugin looks at its node every 30 seconds: it writes its register where that differs, and any text
without `Requesting` over the scheduler's handshake. One more annotation lists the keys that were
written: a simulated card must not outlive its plugin, so these are removed at the end, and where
that fails by the next process or by `hami cleanup`.
"""

from __future__ import annotations

import asyncio
import datetime as dt
import logging
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from typing import NoReturn

from hami.kube import errors, paths
from hami.kube.client import Client
from hami.simulation.cards import VendorCards
from hami.vendors import table
from hami.wire import annotation_keys, codec, node_marks, objects, text_values
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
        self._known = table.node_lists(table.built_in())
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
        """Write what differs, once; what an earlier description had is removed."""
        body = await self._client.get(paths.nodes(self._node), timeout=_TIMEOUT)
        node = codec.decode(body, objects.Node, what=f"node {self._node}")
        wanted: dict[str, str | None] = dict.fromkeys(simulated_keys(node, self._known))
        for each in self._vendors:
            wanted |= each.register()
            handshake = each.vendor.annotations.handshake
            if handshake and each.plugin.answers_handshake:
                value = node.annotation(handshake)
                answered = value and node_marks.handshake_answered(value)
                wanted[handshake] = value if answered else node_marks.handshake_answer(self._now())
        kept = sorted(key for key, value in wanted.items() if value is not None)
        wanted[annotation_keys.SIMULATED] = ",".join(kept) or None
        await self._change(node, wanted)

    async def withdraw(self) -> None:
        """Remove all that was written; what cannot be removed is logged."""
        try:
            body = await self._client.get(paths.nodes(self._node), timeout=_TIMEOUT)
            node = codec.decode(body, objects.Node, what=f"node {self._node}")
            keys = (*simulated_keys(node, self._known), annotation_keys.SIMULATED)
            await self._change(node, dict.fromkeys(keys))
        except (errors.KubeError, wire_errors.WireError) as error:
            _log.warning(
                "cannot remove the registers of simulated cards; `hami cleanup` does",
                extra={"node": self._node, "error": str(error)},
            )

    async def _change(self, node: objects.Node, wanted: Mapping[str, str | None]) -> None:
        changes = {
            key: value for key, value in wanted.items() if node.annotations.get(key) != value
        }
        if changes:
            patch = codec.encode({"metadata": {"annotations": changes}})
            await self._client.patch(paths.nodes(self._node), patch, timeout=_TIMEOUT)
            _log.info("wrote annotations", extra={"keys": sorted(changes)})


def simulated_keys(node: objects.Node, known: Collection[str]) -> list[str]:
    """Return the keys that the node's mark lists; a key of no vendor is not ours."""
    listed = text_values.comma_list(node.annotation(annotation_keys.SIMULATED))
    return [key for key in listed if key in known]
