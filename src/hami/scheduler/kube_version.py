"""Which Kubernetes this is, as far as it matters to us.

kube-scheduler came to hear every change of a node with its queueing hints, which are on since 1.32.
An older one looks first whether the node offers all that the waiting pod asks for, and counts our
shares of memory and compute as missing there whatever its configuration says; it hears of a change
of the pod itself, though. The API server's version stands for kube-scheduler's: they are released
together and at most one apart.
"""

from __future__ import annotations

import asyncio
import logging
import re

from hami.kube import errors
from hami.kube.client import Client
from hami.wire import codec
from hami.wire import errors as wire_errors

_log = logging.getLogger(__name__)

#: The first whose kube-scheduler hears every change of a node, and one more for the difference.
_HEARS_NODES = 33
RETRY_S, AGAIN_S = 5.0, 3600.0


class _Version(codec.Object, frozen=True):
    minor: str | None = None


class KubeVersion:
    def __init__(self, client: Client) -> None:
        self._client = client
        #: Of the API server; None: not known yet.
        self.minor: int | None = None

    @property
    def node_events_wake(self) -> bool:
        """Whether a changed node is enough to have waiting pods tried again."""
        return self.minor is not None and self.minor >= _HEARS_NODES

    async def run(self) -> None:
        while True:
            try:
                await self.read()
            except (errors.KubeError, wire_errors.WireError) as error:
                _log.warning("version of the API server unknown", extra={"error": str(error)})
            await asyncio.sleep(AGAIN_S if self.minor is not None else RETRY_S)

    async def read(self) -> None:
        body = await self._client.get("/version")
        # Providers write 30+, for example.
        digits = re.match(r"[0-9]+", codec.decode(body, _Version, what="version").minor or "")
        self.minor = int(digits[0]) if digits else None
