"""HAMi's lock on a node: waiting for it, taking it, giving it back.

Only nodes whose agent cannot bind late need it (D5). Waiting is not polling: the watch shows when
the lock is gone. While another pod holds it, that pod is looked at from time to time, and a lock
that means nothing any more is removed. Every write names the node's version, so two writers never
both believe they have it.
"""

from __future__ import annotations

import asyncio
import datetime as dt
import logging
from collections.abc import Callable

from hami.kube import errors, paths
from hami.kube.client import Client
from hami.scheduler import node_lock_rules
from hami.scheduler.callers import Caller
from hami.scheduler.refusals import BindRefusedError
from hami.scheduler.world import NodeRecord, World
from hami.wire import annotation_keys, codec, node_lock, objects

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
            value = node_lock.encode(node_lock.Lock(self._time(), namespace, name))
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
            record = self._world.nodes.get(node)
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

    async def _free(self, node: str, namespace: str, name: str, caller: Caller) -> NodeRecord:
        """Wait until no living pod but this one holds the lock."""
        while True:
            caller.require_patience(self._clock())
            record = self._world.nodes.get(node)
            if record is None:
                raise BindRefusedError(f"node {node} does not exist (any more)")
            if not record.lock or node_lock_rules.owner(record.lock) == (namespace, name):
                return record
            verdict = await self._judge(record)
            if self._world.nodes.get(node) is not record:
                continue  # it changed while its owner was looked at
            if verdict.held:
                _log.debug(
                    "waiting for a node's lock",
                    extra={"node": node, "lock": record.lock, "why": verdict.why},
                )
                await self._world.nodes.changed(
                    node, within=min(LOOK_S, caller.patience(self._clock())), unless=caller.left
                )
                continue
            _log.warning(
                "removing a stale lock",
                extra={"node": node, "lock": record.lock, "why": verdict.why},
            )
            await self.give_back(node, record.lock)

    async def _judge(self, record: NodeRecord) -> node_lock_rules.Verdict:
        key = (record.name, record.lock)
        self._first_seen = {k: at for k, at in self._first_seen.items() if k[0] != record.name} | {
            key: self._first_seen.get(key, self._clock())
        }
        owner = node_lock_rules.owner(record.lock)
        pod = None
        if owner is not None:
            try:
                body = await self._client.get(paths.pods(*owner))
                pod = codec.decode(body, objects.Pod, what=f"pod {owner[0]}/{owner[1]}")
            except errors.NotFound:
                pod = None
            except errors.KubeError as error:
                return node_lock_rules.Verdict(held=True, why=f"its pod cannot be read: {error}")
        return node_lock_rules.judge(
            record.lock,
            node=record.name,
            pod=pod,
            now=self._time(),
            seen_for=self._clock() - self._first_seen[key],
            timeout=self._timeout,
        )

    async def _write(self, record: NodeRecord, value: str | None) -> None:
        patch = {
            "metadata": {
                "annotations": {annotation_keys.NODE_LOCK: value},
                "resourceVersion": str(record.version),
            }
        }
        body = await self._client.patch(paths.nodes(record.name), codec.encode(patch))
        self._take_over(body, record.name)

    async def _refresh(self, node: str) -> None:
        try:
            body = await self._client.get(paths.nodes(node))
        except errors.NotFound:
            await asyncio.sleep(0)  # the watch will tell
            return
        self._take_over(body, node)

    def _take_over(self, body: bytes, name: str) -> None:
        self._world.nodes.put(codec.decode(body, objects.Node, what=f"node {name}"))

    def _time(self) -> dt.datetime:
        return dt.datetime.fromtimestamp(self._now(), dt.UTC)
