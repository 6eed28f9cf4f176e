"""Write a pod's status: prepared, or refused again and again.

What the agent writes to pods: one patch, after the first container is prepared.
`bind-phase=success` and the label by which HAMi's monitor finds pods; where the node has a lock,
also the emptied list of what is still to be handed out, and then the lock is given back. None of
it holds up a container's start. A write that fails is tried until it lands or the pod is gone; the
ledger remembers across restarts what is still to be told.

Pods whose start was refused again and again.
kubelet tries for ever. After three refusals within two minutes the pod gets an event of ours, and
where the administrator wants that it is evicted: its controller makes a new one, which is placed
anew.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Awaitable, Callable
from typing import NoReturn

from hami.agent.pods import NodePods
from hami.kube import errors, paths
from hami.kube.client import Client
from hami.kube.events import EventRecorder
from hami.kube.transport import Backoff
from hami.node.ledger_record import LedgerRecord
from hami.wire import annotation_keys, codec
from hami.wire.objects import Pod

_log = logging.getLogger(__name__)

SUCCESS, FAILED = "success", "failed"
_LONGEST_LABEL = 63
_TIMEOUT = 10.0

ReleaseLock = Callable[[LedgerRecord | None, str, str], Awaitable[None]]
"""Gives the node's lock back if that pod (its record, namespace, name) has it."""
Work = Callable[[], Awaitable[None]]
Told = Callable[[str], Awaitable[None]]
"""Notes that the pod with this UID was told."""


class PodStatus:
    def __init__(
        self,
        client: Client,
        node: str,
        *,
        to_allocate: str,
        release_lock: ReleaseLock,
        told: Told,
    ) -> None:
        self._client = client
        self._node = node
        #: The annotation that HAMi's plugins consume.
        self._to_allocate = to_allocate
        self._release_lock = release_lock
        self._told = told
        self._queue: asyncio.Queue[Work] = asyncio.Queue()
        self._pending: set[str] = set()

    def prepared(self, record: LedgerRecord) -> None:
        """Tell the pod that it has its cards; once per pod."""
        if record.told or not record.tokens or record.uid in self._pending:
            return
        self._pending.add(record.uid)
        self._queue.put_nowait(self._telling(record))

    def failed(self, *, uid: str, namespace: str, name: str) -> None:
        """Tell a pod that it gets no cards, and let the next one have the node's lock."""
        body = self._body(uid, {annotation_keys.BIND_PHASE: FAILED}, label=False)
        release = self._releasing(None, namespace, name)

        async def tell() -> None:
            await release()
            await self._patch(namespace, name, body)

        self._queue.put_nowait(tell)

    async def run(self) -> NoReturn:
        async with asyncio.TaskGroup() as group:
            while True:
                work = await self._queue.get()
                group.create_task(self._until_done(work))

    async def _until_done(self, work: Work) -> None:
        backoff = Backoff()
        while True:
            try:
                await work()
            except errors.KubeError as error:
                wait = backoff.next(error.retry_after)
                _log.warning(
                    "a pod cannot be told of its cards yet",
                    extra={"error": str(error), "again_in_s": round(wait, 1)},
                )
                await asyncio.sleep(wait)
            else:
                return

    def _telling(self, record: LedgerRecord) -> Work:
        annotations = {annotation_keys.BIND_PHASE: SUCCESS}
        by_lock = any(not token.cdi for token in record.tokens)
        if by_lock:
            annotations[self._to_allocate] = ";" * len(record.containers)
        body = self._body(record.uid, annotations, label=len(self._node) <= _LONGEST_LABEL)
        release = self._releasing(record, record.namespace, record.name)

        async def tell() -> None:
            await release()
            there = await self._patch(record.namespace, record.name, body)
            if there:
                await self._told(record.uid)
            self._pending.discard(record.uid)

        return tell

    def _releasing(self, record: LedgerRecord | None, namespace: str, name: str) -> Work:
        """Give the lock back before the pod is told, and once.

        The next pod waits for it, and what this one says changes nothing for that. Later, the lock
        may be that of another pod with the same name.
        """
        released = False

        async def release() -> None:
            nonlocal released
            if not released:
                await self._release_lock(record, namespace, name)
                released = True

        return release

    def _body(self, uid: str, annotations: dict[str, str], *, label: bool) -> bytes:
        # The UID makes the server refuse when the name is another pod's by now.
        metadata: dict[str, object] = {"uid": uid, "annotations": annotations}
        if label:
            metadata["labels"] = {annotation_keys.ASSIGNED_NODE: self._node}
        return codec.encode({"metadata": metadata})

    async def _patch(self, namespace: str, name: str, body: bytes) -> bool:
        """Write; False: the pod is gone, or its name is another's."""
        try:
            await self._client.patch(paths.pods(namespace, name), body, timeout=_TIMEOUT)
        except (errors.NotFound, errors.Conflict):
            return False
        except errors.Invalid as error:
            # Asking again would not help; the pod runs nevertheless.
            _log.warning(
                "the API server does not take what we tell of a pod",
                extra={"pod": f"{namespace}/{name}", "error": str(error)},
            )
            return False
        return True


REASON = "GPUStartRefused"
_TIMES = 3
_WITHIN = 120.0


class RefusedPods:
    def __init__(
        self,
        client: Client,
        pods: NodePods,
        events: EventRecorder,
        *,
        evict: bool,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._client = client
        self._pods = pods
        self._events = events
        self._evict = evict
        self._clock = clock
        self._times: dict[str, deque[float]] = {}
        self._evicting: set[asyncio.Task[None]] = set()
        pods.add_handler(self._forget)

    def _forget(self, old: Pod | None, new: Pod | None) -> None:
        if new is None and old is not None:
            self._times.pop(old.uid, None)

    def refused(self, uid: str, message: str) -> None:
        """Take note; the third within two minutes has consequences."""
        pod = self._pods.find(uid)
        if pod is None:
            return  # nobody to tell, and nobody who would be forgotten again
        times = self._times.setdefault(uid, deque(maxlen=_TIMES))
        times.append(self._clock())
        if len(times) < _TIMES or times[-1] - times[0] > _WITHIN:
            return
        times.clear()
        self._events.record(
            namespace=pod.namespace,
            name=pod.name,
            uid=pod.uid,
            type="Warning",
            reason=REASON,
            message=f"refused {_TIMES} times: {message}",
        )
        if self._evict:
            task = asyncio.create_task(self._send_away(pod))
            self._evicting.add(task)
            task.add_done_callback(self._evicting.discard)

    async def _send_away(self, pod: Pod) -> None:
        body = {
            "apiVersion": "policy/v1",
            "kind": "Eviction",
            "metadata": {"name": pod.name, "namespace": pod.namespace},
            "deleteOptions": {"preconditions": {"uid": pod.uid}},
        }
        told = {"pod": f"{pod.namespace}/{pod.name}", "uid": pod.uid}
        try:
            await self._client.create(paths.eviction(pod.namespace, pod.name), codec.encode(body))
        except errors.KubeError as error:
            _log.warning("a refused pod is not evicted", extra={**told, "error": str(error)})
        else:
            _log.info("a refused pod is evicted", extra=told)
