"""HAMi's handshake with device plugins that still use it.

HAMi writes `Requesting_<time>` onto every node for every vendor, to learn whether the plugin is
alive (docs/designs/006-hami-protocol.md). Here only plugins that answer get a request: one is
written where the plugin has written something else, which shows that it was alive then, and again
when the plugin has overwritten ours. Nodes of our own agents and of plugins that never answer are
not written. Cards do not depend on the handshake: a plugin that is silent takes its devices from
kubelet's allocatable anyway.
"""

from __future__ import annotations

import asyncio
import datetime as dt
import logging
from collections.abc import Callable

from hami.kube import errors, paths
from hami.kube.client import Client
from hami.scheduler.informers import WatchedCluster
from hami.scheduler.readiness import Readiness
from hami.scheduler.watched import WatchedNode
from hami.wire import codec, node_marks

_log = logging.getLogger(__name__)

ROUND_S = 1.0


class Handshakes:
    """Write a new request wherever a plugin has answered."""

    def __init__(
        self,
        client: Client,
        watched: WatchedCluster,
        readiness: Readiness,
        *,
        now: Callable[[], float],
    ) -> None:
        self._client = client
        self._watched = watched
        self._readiness = readiness
        self._now = now
        #: Nodes that changed since the last round.
        self._changed: dict[str, None] = {}
        watched.nodes.add_handler(self._on_node)

    def _on_node(self, old: WatchedNode | None, new: WatchedNode | None) -> None:
        if new is not None:
            self._changed[new.name] = None
        elif old is not None:
            self._changed.pop(old.name, None)  # a follower runs no round that would forget it

    async def run(self) -> None:
        while True:
            await asyncio.sleep(ROUND_S)
            await self.run_round()

    async def run_round(self) -> None:
        """Write requests where plugins have answered since the last round."""
        if not self._readiness.ready:
            return
        changed, self._changed = self._changed, {}
        for name in changed:
            node = self._watched.nodes.by_key(name)
            for vendor, value in node.handshakes if node is not None else ():
                if value is not None and node_marks.handshake_answered(value):
                    await self._request(name, vendor)

    async def _request(self, node: str, vendor: str) -> None:
        key = self._watched.cluster.vendors[vendor].annotations.handshake
        patch = {"metadata": {"annotations": {key: node_marks.handshake_request(self._time())}}}
        try:
            await self._client.patch(paths.nodes(node), codec.encode(patch))
        except errors.KubeError as error:
            _log.warning(
                "cannot write handshake, retrying", extra={"node": node, "error": str(error)}
            )
            self._changed[node] = None

    def _time(self) -> dt.datetime:
        # Local time without a zone, as HAMi writes it.
        return dt.datetime.fromtimestamp(self._now())  # noqa: DTZ006
