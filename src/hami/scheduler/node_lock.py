"""HAMi's lock on a node: queue, take, judge, release.

The lock names the pod that is between bind and Allocate. Only nodes whose agent does not bind late
need it (docs/designs/001-late-binding.md). Binds to one node queue first come, first served. The
first in the queue waits for the lock: the watch shows when it is released, and meanwhile the pod
that holds it is read from time to time.

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
import math
from collections.abc import Callable
from typing import Any

import msgspec

from hami.kube import errors, paths
from hami.kube.client import Client
from hami.scheduler.assumed_pods import AssumedPod
from hami.scheduler.errors import BindRefusedError
from hami.scheduler.informers import WatchedCluster, WatchedNode
from hami.scheduler.leadership import Leadership, Permit
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
        #: Node -> the value of its lock, and since when we see it (monotonic).
        self._first_seen: dict[str, tuple[str, float]] = {}
        watched.nodes.add_handler(self._on_node)

    async def take(self, name: str, pod: AssumedPod, caller: Caller) -> str:
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
            owner = lock_owner(node.lock)
            if owner == (pod.namespace, pod.name) and node.lock_uid in ("", pod.uid):
                return node.lock  # a bind that began before has taken it
            if node.lock:
                state = await self._lock_state(node)
                await self._wait_or_remove(node, state, caller)
                continue
            lock = node_marks.Lock(self._time(), pod.namespace, pod.name)
            value = node_marks.encode_lock(lock)
            try:
                await self._write(node, value, node_marks.encode_owner(pod.uid, value))
            except errors.Conflict:
                conflicts += 1
                await self._refresh(name)
            else:
                return value
        self._watched.nodes.resync()  # after a restore of etcd every version that we name conflicts
        raise BindRefusedError(
            f"node {name} changed {WRITE_ATTEMPTS} times while it was being locked; nothing to "
            "do: kube-scheduler retries"
        )

    async def release(self, name: str, value: str) -> None:
        """Remove a lock if it still has this value."""
        for _ in range(WRITE_ATTEMPTS):
            node = self._watched.nodes.by_key(name)
            if node is None or node.lock != value:
                return
            try:
                await self._write(node, None, None)
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

    async def _wait_or_remove(self, node: WatchedNode, state: LockState, caller: Caller) -> None:
        """Wait until a node whose lock is held changes, or remove a stale lock."""
        if self._watched.nodes.by_key(node.name) is not node:
            return  # it changed while its owner was read
        extra = {"node": node.name, "lock": node.lock, "why": state.why}
        if state.held:
            _log.debug("waiting for node lock", extra=extra)
            await self._changed(node, caller)
            return
        _log.warning("removing a stale node lock", extra=extra)
        await self.release(node.name, node.lock)

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

    async def _lock_state(self, node: WatchedNode) -> LockState:
        owner = lock_owner(node.lock)
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
            node.lock,
            uid=node.lock_uid,
            node=node.name,
            pod=pod,
            seen_for=self._seen_for(node),
            timeout=self._timeout,
        )

    def _on_node(self, old: WatchedNode | None, new: WatchedNode | None) -> None:
        if new is not None and new.lock:
            self._seen_for(new)
        elif (node := new or old) is not None:
            self._first_seen.pop(node.name, None)

    def _seen_for(self, node: WatchedNode) -> float:
        """Return for how many seconds we have seen this value of a node's lock."""
        value, since = self._first_seen.get(node.name, ("", 0.0))
        if value != node.lock:
            since = self._clock()
            self._first_seen[node.name] = (node.lock, since)
        return self._clock() - since

    async def _write(self, node: WatchedNode, value: str | None, owner: str | None) -> None:
        patch = {
            "metadata": {
                "annotations": {
                    annotation_keys.NODE_LOCK: value,
                    annotation_keys.NODE_LOCK_OWNER: owner,
                },
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
    if not lock.name:
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


class BindQueue:
    """FIFO queue of binds per node."""

    def __init__(self) -> None:
        #: Node -> its lock, and how many binds hold it or wait for it.
        self._queues: dict[str, tuple[asyncio.Lock, int]] = {}

    async def wait(self, node: str) -> QueuedBind:
        """Wait to be the first; a cancelled bind has left the queue."""
        lock, length = self._queues.get(node, (asyncio.Lock(), 0))
        self._queues[node] = (lock, length + 1)
        try:
            await lock.acquire()
        except BaseException:
            self._remove(node)
            raise
        return QueuedBind(self, node)

    def __len__(self) -> int:
        """Return how many binds are first in their queue or wait, on all nodes."""
        return sum(length for _, length in self._queues.values())

    def end(self, node: str) -> None:
        self._queues[node][0].release()
        self._remove(node)

    def _remove(self, node: str) -> None:
        lock, length = self._queues[node]
        if length == 1:
            del self._queues[node]
        else:
            self._queues[node] = (lock, length - 1)


class QueuedBind:
    """The first in the queue of a node, until it leaves."""

    def __init__(self, queue: BindQueue, node: str) -> None:
        self._queue = queue
        self._node = node
        self._left = False

    def leave(self) -> None:
        """Let the next bind go on; doing it twice does no harm."""
        if not self._left:
            self._left = True
            self._queue.end(self._node)


class CallerLeftError(Exception):
    """The caller of /bind disconnected, and no Binding was sent."""


class Caller:
    """A /bind caller: deadline, disconnect, and the term of leadership it came in."""

    def __init__(
        self, leadership: Leadership, *, term: int | None = None, waits_until: float = math.inf
    ) -> None:
        self._leadership = leadership
        #: The term of leadership in which the bind began; a decision holds in its term alone.
        self.term = leadership.term if term is None else term
        #: Monotonic.
        self._waits_until = waits_until
        #: Done when the caller has disconnected.
        self.left: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def leave(self) -> None:
        if not self.left.done():
            self.left.set_result(None)

    def require(self, permit: Permit | None = None) -> None:
        """Raise unless the permit holds, we still lead and the caller is connected."""
        if permit is not None:
            permit.check()
        self._leadership.check_decision(self.term)
        if self.left.done():
            raise CallerLeftError(
                "kube-scheduler closed its connection before the Binding was sent; if that "
                "repeats, raise the extender's httpTimeout in its configuration"
            )

    def patience(self, clock: float) -> float:
        """Return for how many more seconds the caller waits for a lock."""
        return max(self._waits_until - clock, 0.0)

    def require_patience(self, clock: float, node: str) -> None:
        """Raise unless the caller is connected and its time for the lock is not over."""
        self.require()
        if self.patience(clock) <= 0:
            raise lock_timeout(node)


def lock_timeout(node: str) -> BindRefusedError:
    return BindRefusedError(
        f"node lock contention on {node}: timed out after --node-lock-retry-timeout, which holds "
        "for members of pod groups; kube-scheduler retries, a longer timeout waits"
    )
