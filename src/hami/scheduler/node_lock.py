"""Locks on a node: take, judge, release.

HAMi's lock names the pod that is between bind and Allocate. Most vendors share it; one with a lock
of its own may write a time alone, and then our annotation beside it names the pod. Only nodes whose
agent does not bind late need it (docs/designs/001-late-binding.md). Binds to one node queue first
come, first served (`bind_queue`). The first in the queue waits for the lock: the watch shows when
it is released, and meanwhile the pod that holds it is read from time to time.

A lock is an annotation, and the process that should remove it may have died. Its age alone proves
nothing: an image may be slow to pull, and a stolen lock gives a pod the cards of another. So a lock
is stale when its pod cannot be waiting for Allocate any more. Which pod that is, its UID tells,
which our locks carry in a second annotation; of a lock without one, what the API server shows of
the pod that it names.

The time in a lock is never compared with anything: it is of another machine's clock. Where waiting
has to end, the seconds count for which this process has seen the lock. Every write names the node's
version, so that of two writers only one has the lock.
"""

from __future__ import annotations

import asyncio
import datetime as dt
import logging
from collections.abc import Callable
from typing import Any

import msgspec

from hami.kube import errors, paths
from hami.kube.client import Client
from hami.scheduler.assumed_pods import AssumedPod
from hami.scheduler.bind_queue import Caller
from hami.scheduler.errors import BindRefusedError
from hami.scheduler.informers import WatchedCluster
from hami.scheduler.shared_lock import MixedPods
from hami.scheduler.watched import WatchedNode, WatchedPod
from hami.vendors.table import NodeLock
from hami.wire import annotation_keys, codec, node_marks, objects
from hami.wire import errors as wire_errors

_log = logging.getLogger(__name__)

#: Seconds after which an owner that is still not bound has lost its Binding: no write takes longer.
BINDING_GRACE_S = 15.0
#: Seconds between two reads of the owner of a lock that a bind waits for.
READ_OWNER_S = 2.0
WRITE_ATTEMPTS = 8


class NodeLocks:
    """Take and release the locks of nodes."""

    def __init__(
        self,
        client: Client,
        watched: WatchedCluster,
        *,
        timeout: float,
        clock: Callable[[], float],
        now: Callable[[], float],
    ) -> None:
        self._client = client
        self._watched = watched
        #: Seconds after which a lock that names no pod is stale.
        self._timeout = timeout
        self._clock = clock
        self._now = now
        #: Node -> key of a lock -> its value, and since when we see it (monotonic).
        self._first_seen: dict[str, dict[str, tuple[str, float]]] = {}
        #: Pods that need a lock again before another pod may have it.
        self._mixed_pods = MixedPods(watched)
        watched.nodes.add_handler(self._on_node)

    async def take(self, kind: NodeLock, name: str, pod: AssumedPod, caller: Caller) -> str:
        """Wait until no other pod holds the node's lock, take it, and return its value."""
        conflicts = 0
        while conflicts < WRITE_ATTEMPTS:
            caller.require_patience(self._clock(), name)
            node = self._watched.nodes.by_key(name)
            if node is None:
                raise BindRefusedError(
                    f"node {name} does not exist, or was deleted; nothing to do: kube-scheduler "
                    "chooses another"
                )
            held, uid = node.lock(kind.key), node.lock_uid(kind.key)
            named = lock_owner(held) == (pod.namespace, pod.name)
            if held and uid in ("", pod.uid) and (named or uid):
                return held  # a bind that began before has taken it
            if held:
                state = await self._lock_state(kind, node)
                await self._wait_or_remove(kind, node, state, caller)
                continue
            if any(other.uid != pod.uid for other in self._mixed_pods.half_served(kind, name)):
                await self._changed(node, caller)
                continue
            try:
                return await self._lock_for(kind, node, pod)
            except errors.Conflict:
                conflicts += 1
                await self._refresh(name)
        self._watched.nodes.resync()  # after a restore of etcd every version that we name conflicts
        raise BindRefusedError(
            f"node {name} changed {WRITE_ATTEMPTS} times while it was being locked; nothing to "
            "do: kube-scheduler retries"
        )

    async def lock_again(self, kind: NodeLock, name: str, pod: WatchedPod) -> bool:
        """Take a free lock for a pod that a plugin has yet to serve; False: it is not free."""
        node = self._watched.nodes.by_key(name)
        if node is None or node.lock(kind.key):
            return False
        await self._lock_for(kind, node, pod)
        return True

    async def _lock_for(
        self, kind: NodeLock, node: WatchedNode, pod: AssumedPod | WatchedPod
    ) -> str:
        lock = node_marks.Lock(self._time())
        if kind.names_pod:
            lock = node_marks.Lock(lock.time, pod.namespace, pod.name)
        value = node_marks.encode_lock(lock)
        await self._write(kind, node, value, node_marks.encode_owner(pod.uid, value))
        return value

    async def release(self, kind: NodeLock, name: str, value: str) -> None:
        """Remove a lock if it still has this value."""
        for _ in range(WRITE_ATTEMPTS):
            node = self._watched.nodes.by_key(name)
            if node is None or node.lock(kind.key) != value:
                return
            try:
                await self._write(kind, node, None, None)
            except errors.NotFound:
                return
            except errors.Conflict:
                await self._refresh(name)
            else:
                return
        _log.warning(
            "cannot release node lock: the node changes too fast",
            extra={"node": name, "lock": value},
        )

    async def _wait_or_remove(
        self, kind: NodeLock, node: WatchedNode, state: LockState, caller: Caller
    ) -> None:
        """Wait until a node whose lock is held changes, or remove a stale lock."""
        if self._watched.nodes.by_key(node.name) is not node:
            return  # it changed while its owner was read
        lock = node.lock(kind.key)
        extra = {"node": node.name, "lock": lock, "why": state.why}
        if state.held:
            _log.debug("waiting for node lock", extra=extra)
            await self._changed(node, caller)
            return
        _log.warning("removing a stale node lock", extra=extra)
        await self.release(kind, node.name, lock)

    async def _changed(self, node: WatchedNode, caller: Caller) -> None:
        """Wait until the node changes, its owner is due to be read again, or the caller leaves."""
        changed = asyncio.ensure_future(
            self._watched.nodes.wait(node.name, lambda now: now is not node, None)
        )
        ends: list[asyncio.Future[Any]] = [changed, caller.left]
        try:
            await asyncio.wait(
                ends,
                timeout=min(READ_OWNER_S, caller.patience(self._clock())),
                return_when=asyncio.FIRST_COMPLETED,
            )
        finally:
            changed.cancel()

    async def _lock_state(self, kind: NodeLock, node: WatchedNode) -> LockState:
        value, uid = node.lock(kind.key), node.lock_uid(kind.key)
        owner = lock_owner(value)
        if owner is None and uid:
            if self._watched.has_ended(uid):
                return LockState(held=False, why="its pod is deleted, or has finished")
            known = self._watched.pods.get(uid)
            owner = (known.namespace, known.name) if known is not None else None
        pod = None
        if owner is not None:
            try:
                body = await self._client.get(paths.pods(*owner))
                pod = codec.decode(body, objects.Pod, what=f"pod {owner[0]}/{owner[1]}")
            except errors.NotFound:
                pod = None
            except errors.KubeError as error:
                return LockState(held=True, why=f"its pod cannot be read: {error}")
        return judge(
            value,
            uid=uid,
            node=node.name,
            pod=pod,
            seen_for=self._seen_for(node, kind.key),
            timeout=kind.timeout or self._timeout,
        )

    def _on_node(self, old: WatchedNode | None, new: WatchedNode | None) -> None:
        if new is not None and new.locks:
            for key in new.locks:
                self._seen_for(new, key)
            seen = self._first_seen[new.name]
            for key in [key for key in seen if key not in new.locks]:
                del seen[key]
        elif (node := new or old) is not None:
            self._first_seen.pop(node.name, None)

    def _seen_for(self, node: WatchedNode, key: str) -> float:
        """Return for how many seconds we have seen this value of a node's lock."""
        seen = self._first_seen.setdefault(node.name, {})
        value, since = seen.get(key, ("", 0.0))
        if value != node.lock(key):
            since = self._clock()
            seen[key] = (node.lock(key), since)
        return self._clock() - since

    async def _write(
        self, kind: NodeLock, node: WatchedNode, value: str | None, owner: str | None
    ) -> None:
        patch = {
            "metadata": {
                "annotations": {kind.key: value, kind.owner_key: owner},
                "resourceVersion": str(node.version),
            }
        }
        body = await self._client.patch(paths.nodes(node.name), codec.encode(patch))
        self._watched.nodes.offer(body)

    async def _refresh(self, name: str) -> None:
        try:
            body = await self._client.get(paths.nodes(name))
        except errors.NotFound:
            await asyncio.sleep(0)  # the watch will show it
            return
        self._watched.nodes.offer(body)

    def _time(self) -> dt.datetime:
        return dt.datetime.fromtimestamp(self._now(), dt.UTC)


class LockState(msgspec.Struct, frozen=True):
    """Whether a lock is held or stale, and why."""

    held: bool
    why: str


def judge(  # noqa: PLR0911  one line per rule
    value: str,
    *,
    uid: str,
    node: str,
    pod: objects.Pod | None,
    seen_for: float,
    timeout: float,
) -> LockState:
    """Judge a lock by its owner.

    `uid` is the owner's, or empty; `pod` the pod of its name as the API server has it; `seen_for`
    the seconds that we know the lock; `timeout` the seconds after which a lock without a readable
    owner is stale.
    """
    try:
        lock = node_marks.decode_lock(value)
    except wire_errors.WireError as error:
        return LockState(seen_for < timeout, str(error))
    if not lock.name and pod is None:
        return LockState(seen_for < timeout, "it names no pod")
    if pod is None:
        return LockState(held=False, why="its pod is deleted")
    if uid and pod.uid != uid:
        return LockState(held=False, why="its pod was deleted, another has its name")
    if pod.finished:
        return LockState(held=False, why=f"its pod is {pod.phase}")
    if not pod.node_name:
        return LockState(seen_for < BINDING_GRACE_S, "its pod is not bound")
    if pod.node_name != node:
        return LockState(held=False, why=f"its pod is on {pod.node_name}")
    phase = pod.annotation(annotation_keys.BIND_PHASE)
    if phase in ("success", "failed") or pod.phase == "Running":
        return LockState(held=False, why=f"its pod has its cards (bind-phase {phase or 'unknown'})")
    return LockState(held=True, why=f"its pod waits for kubelet, seen for {seen_for:.0f} s")


def lock_owner(value: str) -> tuple[str, str] | None:
    """Return namespace and name of the pod a lock names; None if it names none."""
    try:
        lock = node_marks.decode_lock(value)
    except wire_errors.WireError:
        return None
    return (lock.namespace, lock.name) if lock.name else None
