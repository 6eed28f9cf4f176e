"""The pods of our node, by UID: kubelet knows them by nothing else.

A watch of this node's pods keeps them. A container may be about to start before the watch has
brought its pod (or while the watch is broken), so whoever waits for a pod also has the node's pods
listed, once for all who wait.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from hami.kube import errors, paths, store
from hami.kube.client import Client
from hami.kube.informer import Reflector
from hami.kube.store import Cache
from hami.wire import codec
from hami.wire import errors as wire_errors
from hami.wire.objects import Pod

_log = logging.getLogger(__name__)

#: Seconds before the pod is asked for, and between two questions: the watch is usually faster.
_ASK_EVERY = 1.0
_ASK_TIMEOUT = 5.0


class _PodList(codec.Object, frozen=True):
    items: list[Pod | None] | None = None


class NodePods:
    def __init__(self, client: Client, node: str, *, resync_interval: float) -> None:
        self._client = client
        self._query = {"fieldSelector": f"spec.nodeName={node}"}
        self._cache: Cache[Pod] = Cache()
        self._asking: asyncio.Task[dict[str, Pod]] | None = None
        self.reflector = Reflector(
            client,
            paths.pods(),
            decode=store.all_of(Pod, "pod"),
            sink=self._cache,
            kind="pods of this node",
            query=self._query,
            resync_interval=resync_interval,
        )

    @property
    def synced(self) -> bool:
        return self.reflector.synced

    def find(self, uid: str) -> Pod | None:
        return self._cache.by_uid(uid)

    def all(self) -> list[Pod]:
        return list(self._cache)

    def init_done(self) -> frozenset[str]:
        """Return the UIDs of pods whose init containers have ended."""
        return frozenset(pod.uid for pod in self._cache if pod.init_done)

    def subscribe(self, callback: Callable[[Pod | None, Pod | None], None]) -> Callable[[], None]:
        """Call back with (old, new) after each change; returns what ends that."""
        return self._cache.subscribe(callback)

    async def wait(self, uid: str, seconds: float) -> Pod | None:
        """Return the pod, waiting for it as long as told; None: the API server has none."""
        found = self.find(uid)
        if found is not None:
            return found
        came: asyncio.Future[Pod] = asyncio.get_running_loop().create_future()

        def look(_old: Pod | None, new: Pod | None) -> None:
            if new is not None and new.uid == uid and not came.done():
                came.set_result(new)

        end = self.subscribe(look)
        try:
            async with asyncio.timeout(seconds):
                return await self._watch_or_ask(uid, came)
        except TimeoutError:
            return None
        finally:
            end()
            came.cancel()

    async def _watch_or_ask(self, uid: str, came: asyncio.Future[Pod]) -> Pod:
        while True:
            done, _ = await asyncio.wait([came], timeout=_ASK_EVERY)
            if done:
                return came.result()
            if (found := (await self._ask()).get(uid)) is not None:
                return found

    async def _ask(self) -> dict[str, Pod]:
        """List the node's pods; those who ask at the same time share one answer."""
        if self._asking is None or self._asking.done():
            self._asking = asyncio.create_task(self._list())
        return await asyncio.shield(self._asking)

    async def _list(self) -> dict[str, Pod]:
        try:
            body = await self._client.get(paths.pods(), self._query, timeout=_ASK_TIMEOUT)
            listed = codec.decode(body, _PodList, what="list of this node's pods").items or ()
        except (errors.KubeError, wire_errors.WireError) as error:
            _log.warning("this node's pods cannot be listed", extra={"error": str(error)})
            return {}
        return {pod.uid: pod for pod in listed if pod is not None}
