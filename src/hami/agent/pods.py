"""The pods of our node, by UID: kubelet knows them by nothing else.

An informer of this node's pods keeps them. A container may be about to start before the watch has
brought its pod (or while the watch is broken), so a caller that waits for a pod also has the node's
pods listed, once for all callers.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging

from hami.kube import errors, listwatch, paths
from hami.kube.client import Client
from hami.kube.informer import Informer
from hami.kube.lister import Handler
from hami.wire import errors as wire_errors
from hami.wire.objects import Pod

_log = logging.getLogger(__name__)

#: Seconds before the pods are listed, and between two lists: the watch is usually faster.
_LIST_EVERY_S = 1.0
_LIST_TIMEOUT_S = 5.0


class NodePods:
    """The informer of this node's pods, and waits for a single pod."""

    def __init__(self, client: Client, node: str, *, resync_interval: float) -> None:
        self._client = client
        self._query = {"fieldSelector": f"spec.nodeName={node}"}
        self._listing: asyncio.Task[set[str] | None] | None = None
        self.informer: Informer[Pod] = Informer(
            client,
            paths.pods(),
            listwatch.all_of(Pod, "pod"),
            kind="pods of this node",
            query=self._query,
            resync_interval=resync_interval,
        )

    @property
    def synced(self) -> bool:
        """Whether the pods of this node have been listed since the start."""
        return self.informer.synced

    def find(self, uid: str) -> Pod | None:
        """Return the pod with this UID; None: not on this node, or not known yet."""
        return self.informer.get(uid)

    def all(self) -> list[Pod]:
        """Return all pods of this node."""
        return list(self.informer)

    def init_done(self) -> frozenset[str]:
        """Return the UIDs of pods whose init containers have ended."""
        return frozenset(pod.uid for pod in self.informer if pod.init_done)

    def add_handler(self, handler: Handler[Pod]) -> None:
        """Call back with (old, new) after each change."""
        self.informer.add_handler(handler)

    async def wait(self, uid: str, seconds: float) -> Pod | None:
        """Return the pod, waiting at most so many seconds; None: the API server has none."""
        try:
            async with asyncio.timeout(seconds):
                while (found := await self._wait_for_watch(uid)) is None:
                    if uid in await self._list() and uid not in self.informer:
                        # It takes the pod for an old one: etcd may have been restored.
                        self.informer.resync()
                return found
        except TimeoutError:
            return None

    async def refresh(self) -> bool:
        """Take in what the API server has now; False: it does not answer."""
        return await self._offer_all() is not None

    async def _wait_for_watch(self, uid: str) -> Pod | None:
        try:
            return await self.informer.wait(uid, lambda pod: pod is not None, _LIST_EVERY_S)
        except TimeoutError:
            return None

    async def _list(self) -> set[str]:
        """List the node's pods; callers at the same time share one list."""
        if self._listing is None or self._listing.done():
            self._listing = asyncio.create_task(self._offer_all())
        return await asyncio.shield(self._listing) or set()

    async def _offer_all(self) -> set[str] | None:
        """List the node's pods; None: the list is not complete."""
        listed: set[str] = set()
        try:
            async with asyncio.timeout(_LIST_TIMEOUT_S):
                async for page in listwatch.pages(self._client, paths.pods(), self._query):
                    for body in page.items:
                        self.informer.offer(body)
                        with contextlib.suppress(wire_errors.WireError):
                            listed.add(listwatch.identity(body)[0])
        except (errors.KubeError, wire_errors.WireError, TimeoutError) as error:
            _log.warning("cannot list the pods of this node", extra={"error": str(error)})
            return None
        return listed
