"""The old liveness conversation, with plugins that hold it.

HAMi writes `Requesting_<time>` onto every node for every vendor. Here only plugins that answer are
asked: a node gets a request when its plugin has written something else there, which means it was
alive at that time, and is due again when the plugin has overwritten ours. Nodes of our own agents
and of plugins that never speak stay untouched. What the answer decides (whether cards count) is
bounded by what kubelet offers anyway, so a silent plugin costs a node nothing but its allocatable
devices.
"""

from __future__ import annotations

import asyncio
import datetime as dt
import logging
from collections.abc import Callable

from hami.kube import errors, paths
from hami.kube.client import Client
from hami.scheduler.informers import WatchedNode, World
from hami.scheduler.readiness import Readiness
from hami.wire import codec, node_marks

_log = logging.getLogger(__name__)

ROUND_S = 1.0


class Handshakes:
    def __init__(
        self, client: Client, world: World, readiness: Readiness, *, now: Callable[[], float]
    ) -> None:
        self._client = client
        self._world = world
        self._readiness = readiness
        self._now = now
        #: Nodes seen since the last round.
        self._seen: dict[str, None] = {}
        world.nodes.add_handler(self._on_node)

    def _on_node(self, _old: WatchedNode | None, new: WatchedNode | None) -> None:
        if new is not None:
            self._seen[new.name] = None

    async def run(self) -> None:
        while True:
            await asyncio.sleep(ROUND_S)
            await self.answer()

    async def answer(self) -> None:
        """Answer the plugins that have spoken since the last round."""
        if not self._readiness.ready:
            return
        seen, self._seen = self._seen, {}
        for name in seen:
            record = self._world.nodes.by_key(name)
            for word, value in record.handshakes if record is not None else ():
                if value is not None and self._has_spoken(value):
                    await self._request(name, word)

    def _has_spoken(self, value: str) -> bool:
        return node_marks.evaluate_handshake(value, now=self._time(), allocatable=0).refresh

    async def _request(self, node: str, word: str) -> None:
        key = self._world.cluster.vendors[word].annotations.handshake
        patch = {"metadata": {"annotations": {key: node_marks.handshake_request(self._time())}}}
        try:
            await self._client.patch(paths.nodes(node), codec.encode(patch))
        except errors.KubeError as error:
            _log.warning("handshake not written", extra={"node": node, "error": str(error)})
            self._seen[node] = None

    def _time(self) -> dt.datetime:
        # Local, without a zone: so it stands in the annotation.
        return dt.datetime.fromtimestamp(self._now())  # noqa: DTZ006 - the annotation has none
