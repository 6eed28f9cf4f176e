"""Pods with cards of several vendors that share one lock.

A plugin that has served a pod empties its own list, marks the pod as done and removes the lock,
though the plugin of another vendor finds the pod by the same lock. So no other pod gets the lock
before every plugin has served the first, and the lock is taken for that pod again as soon as the
watch shows that it is free. Plugins also find a pod without a lock by its mark, so the mark is
set back, too. It is set back first: the lock of a pod that is marked as done counts as stale.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import Protocol

from hami.kube import errors, paths
from hami.kube.client import Client
from hami.scheduler.informers import WatchedCluster
from hami.scheduler.readiness import Readiness
from hami.scheduler.watched import WatchedNode, WatchedPod
from hami.vendors.table import NodeLock
from hami.wire import annotation_keys, codec

_log = logging.getLogger(__name__)

ALLOCATING = "allocating"
#: Seconds until what could not be written is tried again, and a new leader looks.
AGAIN_S = 0.5


class MixedPods:
    """Bound pods with cards of several vendors that some plugin has yet to serve."""

    def __init__(self, watched: WatchedCluster) -> None:
        self._watched = watched
        #: Node -> UIDs.
        self._uids: dict[str, dict[str, None]] = {}
        watched.pods.add_handler(self._on_pod)

    def _on_pod(self, old: WatchedPod | None, new: WatchedPod | None) -> None:
        if old is not None and old.unserved and old.node in self._uids:
            self._uids[old.node].pop(old.uid, None)
            if not self._uids[old.node]:
                del self._uids[old.node]
        if new is not None and new.unserved:
            self._uids.setdefault(new.node, {})[new.uid] = None

    def nodes(self) -> list[str]:
        """Return the nodes with such pods."""
        return list(self._uids)

    def half_served(self, kind: NodeLock, node: str) -> list[WatchedPod]:
        """Return the pods of a node that one plugin has served, and another has yet to."""
        found = (self._watched.pods.get(uid) for uid in self._uids.get(node, ()))
        return [pod for pod in found if pod is not None and self._is_half_served(kind, node, pod)]

    def _is_half_served(self, kind: NodeLock, node: str, pod: WatchedPod) -> bool:
        known, vendors = self._watched.nodes.by_key(node), self._watched.cluster.vendors
        late = known.late if known is not None else frozenset()
        names = [name for name, _ in pod.info.shares] if pod.info is not None else []
        sharing = {n for n in names if vendors[n].annotations.lock == kind.key and n not in late}
        return bool(sharing & pod.unserved) and bool(sharing - pod.unserved)


class Locks(Protocol):
    """What takes a lock that is free."""

    async def lock_again(self, kind: NodeLock, name: str, pod: WatchedPod) -> bool: ...


class SharedLocks:
    """Take a lock again for a pod that a plugin has yet to serve."""

    def __init__(
        self, client: Client, watched: WatchedCluster, locks: Locks, readiness: Readiness
    ) -> None:
        self._client = client
        self._watched = watched
        self._locks = locks
        self._readiness = readiness
        self._mixed_pods = MixedPods(watched)
        kinds = (vendor.lock for vendor in watched.cluster.vendors.values())
        self._kinds = tuple({kind.key: kind for kind in kinds if kind is not None}.values())
        #: Set when a pod or a node with a lock has changed.
        self._changed = asyncio.Event()
        watched.pods.add_handler(self._on_pod)
        watched.nodes.add_handler(self._on_node)

    def _on_pod(self, _: WatchedPod | None, new: WatchedPod | None) -> None:
        if new is not None and new.unserved:
            self._changed.set()

    def _on_node(self, old: WatchedNode | None, new: WatchedNode | None) -> None:
        if old is not None and new is not None and old.locks != new.locks:
            self._changed.set()

    async def run(self) -> None:
        """Look at every change, and again a moment later while something is left to write."""
        left = False
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(AGAIN_S if left else None):
                    await self._changed.wait()
            self._changed.clear()
            ready = self._readiness.ready
            left = await self.run_round() if ready else bool(self._mixed_pods.nodes())

    async def run_round(self) -> bool:
        """Take every lock that is free and that a pod needs again; True: a write failed."""
        failed = False
        for node in self._mixed_pods.nodes():
            for kind in self._kinds:
                for pod in self._mixed_pods.half_served(kind, node):
                    failed |= not await self._again(kind, node, pod)
        return failed

    async def _again(self, kind: NodeLock, node: str, pod: WatchedPod) -> bool:
        """Mark a pod and take the lock for it, unless it is held; False: a write failed."""
        known = self._watched.nodes.by_key(node)
        if known is None or known.lock(kind.key):
            return True
        extra = {"node": node, "pod": f"{pod.namespace}/{pod.name}", "lock": kind.key}
        mark = {annotation_keys.BIND_PHASE: ALLOCATING}
        patch = {"metadata": {"annotations": mark, "resourceVersion": str(pod.version)}}
        try:
            path = paths.pods(pod.namespace, pod.name)
            self._watched.pods.offer(await self._client.patch(path, codec.encode(patch)))
            locked = await self._locks.lock_again(kind, node, pod)
        except errors.Conflict:
            return False  # the pod or the node has changed, maybe in what does not matter here
        except errors.KubeError as error:
            _log.warning("cannot lock the node again", extra={**extra, "error": str(error)})
            return False
        if locked:
            _log.info("locked the node again: another plugin has yet to serve the pod", extra=extra)
        return True
