"""HAMi's lock on a node: queue, take, judge, release.

Whether the lock on a node still means something.
HAMi's lock says which pod is between bind and Allocate. It is a text with a time, and whoever
should remove it may have died. Time alone proves nothing (a slow image or a waiting kubelet is no
crime, and a stolen lock serves a pod with another one's cards), so the owner is looked at: a lock
is stale when its pod cannot be waiting for Allocate any more. Pure; `hami.scheduler.bind_queue`
acts on the verdict.

Binds to one node, one after the other, in the order they came.

Whoever waits for a bind: still there, and for how long.

HAMi's lock on a node: waiting for it, taking it, giving it back.
Only nodes whose agent cannot bind late need it (D5). Waiting is not polling: the watch shows when
the lock is gone. While another pod holds it, that pod is looked at from time to time, and a lock
that means nothing any more is removed. Every write names the node's version, so two writers never
both believe they have it.
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
from hami.scheduler.errors import BindRefusedError
from hami.scheduler.informers import WatchedNode, World
from hami.scheduler.leadership import Leadership
from hami.wire import annotation_keys, codec, node_marks, objects
from hami.wire import errors as wire_errors

#: Seconds after which an owner that is still not bound has lost its Binding: no write takes longer.
BINDING_GRACE_S = 15.0


class LockState(msgspec.Struct, frozen=True):
    held: bool
    why: str


def lock_owner(value: str) -> tuple[str, str] | None:
    """Return namespace and name of the pod a lock names; None if it names none."""
    try:
        lock = node_marks.decode_lock(value)
    except wire_errors.WireError:
        return None
    return (lock.namespace, lock.name) if lock.name else None


def judge(  # noqa: PLR0911  one line per rule
    value: str,
    *,
    node: str,
    pod: objects.Pod | None,
    now: dt.datetime,
    seen_for: float,
    timeout: float,
) -> LockState:
    """Judge a lock; `pod` is its owner as the API server has it, `seen_for` how long we know it."""
    try:
        lock = node_marks.decode_lock(value)
    except wire_errors.WireError as error:
        return LockState(seen_for < timeout, str(error))
    age = max((now - lock.time).total_seconds(), seen_for)
    if not lock.name:
        return LockState(age < timeout, "it names no pod")
    if pod is None:
        return LockState(held=False, why="its pod is gone")
    if pod.finished:
        return LockState(held=False, why=f"its pod is {pod.phase}")
    if _created(pod) > lock.time + dt.timedelta(seconds=1):
        return LockState(held=False, why="its pod was deleted, another has its name")
    if not pod.node_name:
        return LockState(age < BINDING_GRACE_S, "its pod is not bound")
    if pod.node_name != node:
        return LockState(held=False, why=f"its pod is on {pod.node_name}")
    phase = pod.annotation(annotation_keys.BIND_PHASE)
    if phase in ("success", "failed") or pod.phase == "Running":
        return LockState(held=False, why=f"its pod has its cards (bind-phase {phase or 'unknown'})")
    return LockState(held=True, why=f"its pod waits for kubelet for {age:.0f} s")


def _created(pod: objects.Pod) -> dt.datetime:
    text = (pod.metadata and pod.metadata.creation_timestamp) or ""
    try:
        return dt.datetime.fromisoformat(text)
    except ValueError:
        return dt.datetime.min.replace(tzinfo=dt.UTC)


class QueuedBind:
    """The right to bind to a node until it is handed on."""

    def __init__(self, turns: BindQueue, node: str) -> None:
        self._turns = turns
        self._node = node
        self._done = False

    def hand_on(self) -> None:
        """Let the next in line go on; doing it twice does no harm."""
        if not self._done:
            self._done = True
            self._turns.end(self._node)


class BindQueue:
    def __init__(self) -> None:
        #: Node -> its lock, and how many hold it or wait for it.
        self._lines: dict[str, tuple[asyncio.Lock, int]] = {}

    async def wait(self, node: str) -> QueuedBind:
        """Wait for one's turn. Whoever is cancelled has left the line."""
        lock, waiting = self._lines.get(node, (asyncio.Lock(), 0))
        self._lines[node] = (lock, waiting + 1)
        try:
            await lock.acquire()
        except BaseException:
            self._leave(node)
            raise
        return QueuedBind(self, node)

    def waiting(self) -> int:
        """Return how many binds hold a turn or wait for one."""
        return sum(number for _, number in self._lines.values())

    def end(self, node: str) -> None:
        self._lines[node][0].release()
        self._leave(node)

    def _leave(self, node: str) -> None:
        lock, waiting = self._lines[node]
        if waiting == 1:
            del self._lines[node]
        else:
            self._lines[node] = (lock, waiting - 1)


class CallerLeftError(Exception):
    """Nobody waits for this bind any more, and no Binding was sent."""


class Caller:
    def __init__(self, leadership: Leadership, *, waits_until: float = math.inf) -> None:
        self._leadership = leadership
        #: The term of leadership in which the bind began; what was decided holds in it alone.
        self.term = leadership.term
        #: Monotonic.
        self._waits_until = waits_until
        #: Done when the caller has gone away.
        self.left: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def leave(self) -> None:
        if not self.left.done():
            self.left.set_result(None)

    def require(self) -> None:
        """Raise unless somebody still waits, and we still lead."""
        self._leadership.check_decision(self.term)
        if self.left.done():
            raise CallerLeftError("whoever asked for the bind has gone away")

    def patience(self, clock: float) -> float:
        """Return for how many more seconds the caller waits for a lock."""
        return max(self._waits_until - clock, 0.0)

    def require_patience(self, clock: float) -> None:
        """Raise unless the caller is there and still willing to wait."""
        self.require()
        if self.patience(clock) <= 0:
            raise out_of_patience()


def out_of_patience() -> BindRefusedError:
    return BindRefusedError(
        "node lock contention: timed out after --node-lock-retry-timeout, which holds for members "
        "of pod groups"
    )


_log = logging.getLogger(__name__)

#: Seconds between two looks at the owner of a lock that somebody waits for.
LOOK_S = 2.0
WRITE_ATTEMPTS = 8


class NodeLocks:
    def __init__(
        self,
        client: Client,
        world: World,
        *,
        timeout: float,
        clock: Callable[[], float],
        now: Callable[[], float],
    ) -> None:
        self._client = client
        self._world = world
        self._timeout = timeout
        self._clock = clock
        self._now = now
        #: (node, value) -> when this value was first seen by somebody who waits (monotonic).
        self._first_seen: dict[tuple[str, str], float] = {}

    async def take(self, node: str, namespace: str, name: str, caller: Caller) -> str:
        """Wait until the node is free, lock it for a pod, and return the lock's value."""
        for _ in range(WRITE_ATTEMPTS):
            record = await self._free(node, namespace, name, caller)
            if record.lock:
                return record.lock  # ours already: a bind that was begun before
            value = node_marks.encode_lock(node_marks.Lock(self._time(), namespace, name))
            try:
                await self._write(record, value)
            except errors.Conflict:
                await self._refresh(node)
            else:
                return value
        raise BindRefusedError(f"node {node} changes faster than it can be locked; try again")

    async def give_back(self, node: str, value: str) -> None:
        """Remove a lock if it is still this one."""
        for _ in range(WRITE_ATTEMPTS):
            record = self._world.nodes.by_key(node)
            if record is None or record.lock != value:
                return
            try:
                await self._write(record, None)
            except errors.NotFound:
                return
            except errors.Conflict:
                await self._refresh(node)
            else:
                return
        _log.warning("lock could not be removed", extra={"node": node, "lock": value})

    async def _free(self, node: str, namespace: str, name: str, caller: Caller) -> WatchedNode:
        """Wait until no living pod but this one holds the lock."""
        while True:
            caller.require_patience(self._clock())
            record = self._world.nodes.by_key(node)
            if record is None:
                raise BindRefusedError(f"node {node} does not exist (any more)")
            if not record.lock or lock_owner(record.lock) == (namespace, name):
                return record
            verdict = await self._judge(record)
            if self._world.nodes.by_key(node) is not record:
                continue  # it changed while its owner was looked at
            if verdict.held:
                _log.debug(
                    "waiting for a node's lock",
                    extra={"node": node, "lock": record.lock, "why": verdict.why},
                )
                await self._changed(record, caller)
                continue
            _log.warning(
                "removing a stale lock",
                extra={"node": node, "lock": record.lock, "why": verdict.why},
            )
            await self.give_back(node, record.lock)

    async def _changed(self, record: WatchedNode, caller: Caller) -> None:
        """Wait until the node changes, its owner is due to be read again, or the caller leaves."""
        changed = asyncio.ensure_future(
            self._world.nodes.wait(record.name, lambda now: now is not record, None)
        )
        ends: list[asyncio.Future[Any]] = [changed, caller.left]
        try:
            await asyncio.wait(
                ends,
                timeout=min(LOOK_S, caller.patience(self._clock())),
                return_when=asyncio.FIRST_COMPLETED,
            )
        finally:
            changed.cancel()

    async def _judge(self, record: WatchedNode) -> LockState:
        key = (record.name, record.lock)
        self._first_seen = {k: at for k, at in self._first_seen.items() if k[0] != record.name} | {
            key: self._first_seen.get(key, self._clock())
        }
        owner = lock_owner(record.lock)
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
            record.lock,
            node=record.name,
            pod=pod,
            now=self._time(),
            seen_for=self._clock() - self._first_seen[key],
            timeout=self._timeout,
        )

    async def _write(self, record: WatchedNode, value: str | None) -> None:
        patch = {
            "metadata": {
                "annotations": {annotation_keys.NODE_LOCK: value},
                "resourceVersion": str(record.version),
            }
        }
        body = await self._client.patch(paths.nodes(record.name), codec.encode(patch))
        self._world.nodes.offer(body)

    async def _refresh(self, node: str) -> None:
        try:
            body = await self._client.get(paths.nodes(node))
        except errors.NotFound:
            await asyncio.sleep(0)  # the watch will tell
            return
        self._world.nodes.offer(body)

    def _time(self) -> dt.datetime:
        return dt.datetime.fromtimestamp(self._now(), dt.UTC)
