"""Patch a pod's status: prepared, failed, or refused again and again.

One patch per pod, after its first container is prepared: `bind-phase=success` and the label by
which HAMi's monitor finds pods. Where the node has a lock, the patch also empties the list of what
is still to be handed out, and the lock is released before it. None of this delays a container's
start. A failed write is retried until it succeeds or the pod is deleted; the ledger remembers
across restarts which pods are still to be patched.

kubelet retries a refused start for ever. After three refusals within two minutes the pod gets an
event and a mark (`hami.io/start-refused`), which is removed when it starts after all. The
scheduler's leader evicts marked pods with `--evict-refused`; the agent may evict none.
"""

from __future__ import annotations

import asyncio
import datetime as dt
import logging
import random as randomness
import time
from collections import deque
from collections.abc import Awaitable, Callable, Collection
from typing import NoReturn

from hami.agent.allocator import Allocator
from hami.agent.node_status import NodeStatus
from hami.agent.pods import NodePods
from hami.kube import errors, paths
from hami.kube.client import Client
from hami.kube.events import EventRecorder
from hami.kube.transport import Backoff
from hami.node.ledger_record import LedgerRecord
from hami.serving import lifetime
from hami.wire import annotation_keys, codec, node_marks, objects, pod_marks
from hami.wire import errors as wire_errors
from hami.wire.objects import Pod
from hami.wire.pod_marks import Refusal

_log = logging.getLogger(__name__)

SUCCESS, FAILED = "success", "failed"
_LONGEST_LABEL = 63
_TIMEOUT = 10.0

Work = Callable[[], Awaitable[None]]


class PodStatus:
    """Writes to pods that they have their cards, or that they get none."""

    def __init__(
        self,
        client: Client,
        node: NodeStatus,
        allocator: Allocator,
        *,
        to_allocate: str,
        others: Collection[str] = (),
    ) -> None:
        self._client = client
        self._node = node
        self._allocator = allocator
        #: The annotation that HAMi's plugins consume.
        self._to_allocate = to_allocate
        #: Those of other vendors whose plugins find a pod by the same lock.
        self._others = frozenset(others)
        self._queue: asyncio.Queue[Work] = asyncio.Queue()
        self._pending: set[str] = set()

    def prepared(self, record: LedgerRecord) -> None:
        """Write to the pod that it has its cards; once per pod."""
        if record.reported or not record.allocations or record.uid in self._pending:
            return
        self._pending.add(record.uid)
        self._queue.put_nowait(self._success(record))

    def failed(self, pod: Pod) -> None:
        """Write to the pod that it gets no cards, and release the node's lock for the next pod."""
        body = self._body(pod.uid, {annotation_keys.BIND_PHASE: FAILED}, label=False)
        release = self._releasing(None, pod.namespace, pod.name, pod.uid)

        async def report() -> None:
            await release()
            await self._patch(pod.namespace, pod.name, body)

        self._queue.put_nowait(report)

    async def run(self) -> NoReturn:
        """Write queued statuses, each in a task of its own, for ever."""
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
                    "cannot write a pod's status yet, retrying",
                    extra={"error": str(error), "again_in_s": round(wait, 1)},
                )
                await asyncio.sleep(wait)
            else:
                return

    def _success(self, record: LedgerRecord) -> Work:
        annotations = {annotation_keys.BIND_PHASE: SUCCESS}
        if any(not allocation.cdi for allocation in record.allocations):
            annotations[self._to_allocate] = ";" * len(record.containers)
        label = len(self._node.name) <= _LONGEST_LABEL
        release = self._releasing(record, record.namespace, record.name, record.uid)

        async def report() -> None:
            written = dict(annotations)
            if record.others and await self._is_awaited(record):
                del written[annotation_keys.BIND_PHASE]  # the last plugin marks and unlocks
            else:
                await release()
            body = self._body(record.uid, written, label=label)
            exists = await self._patch(record.namespace, record.name, body)
            if exists:
                await self._allocator.mark_reported(record.uid)
            self._pending.discard(record.uid)

        return report

    async def _is_awaited(self, record: LedgerRecord) -> bool:
        """Return whether the plugin of another vendor has yet to find the pod by the lock."""
        try:
            body = await self._client.get(paths.pods(record.namespace, record.name))
            pod = codec.decode(body, Pod, what=f"pod {record.name}")
        except (errors.NotFound, wire_errors.WireError):
            return False
        return pod.uid == record.uid and any("," in pod.annotation(key) for key in self._others)

    def _releasing(self, record: LedgerRecord | None, namespace: str, name: str, uid: str) -> Work:
        """Return what releases the node's lock, once, and before the pod is patched.

        The next pod waits for the lock, and nothing in this pod's patch matters to it. Later, a
        lock without a UID may belong to another pod of the same name.
        """
        released = False

        async def release() -> None:
            nonlocal released
            if not released:
                await self._release_lock(record, namespace, name, uid)
                released = True

        return release

    async def _release_lock(
        self, record: LedgerRecord | None, namespace: str, name: str, uid: str
    ) -> None:
        """Release the node's lock; for a pod that never needed it this sends no request."""
        late = record is not None and all(allocation.cdi for allocation in record.allocations)
        if not late or _is_held_by(self._node.lock(), namespace, name):
            await release_lock(
                self._client, self._node.name, namespace=namespace, name=name, uid=uid
            )

    def _body(self, uid: str, annotations: dict[str, str], *, label: bool) -> bytes:
        # The UID makes the server refuse when the name is another pod's by now.
        metadata: dict[str, object] = {"uid": uid, "annotations": annotations}
        if label:
            metadata["labels"] = {annotation_keys.ASSIGNED_NODE: self._node.name}
        return codec.encode({"metadata": metadata})

    async def _patch(self, namespace: str, name: str, body: bytes) -> bool:
        """Patch a pod; False: it was deleted, or its name is another pod's."""
        try:
            await self._client.patch(paths.pods(namespace, name), body, timeout=_TIMEOUT)
        except (errors.NotFound, errors.Conflict):
            return False
        except errors.Invalid as error:
            # A retry would not help; the pod runs nevertheless.
            _log.warning(
                "the API server refuses a pod's status",
                extra={"pod": f"{namespace}/{name}", "error": str(error)},
            )
            return False
        return True


_RELEASE_ATTEMPTS = 8


async def release_lock(
    client: Client,
    node: str,
    *,
    namespace: str,
    name: str,
    uid: str,
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    random: Callable[[], float] = randomness.random,
) -> bool:
    """Remove the node's lock if it names this pod; return whether it certainly does not now.

    A lock with a UID is this pod's only if that is its own; HAMi's scheduler writes none. The lock
    may be another pod's by now, or be taken by the scheduler at the same moment. So the patch names
    the version of the Node that was read. Should the lock stay nevertheless, the scheduler finds
    that its pod has its cards, and removes it.
    """
    backoff = Backoff(first=0.1, longest=5.0, random=random)
    failure: Exception | None = None
    for _ in range(_RELEASE_ATTEMPTS):
        try:
            return await _release_once(client, node, namespace, name, uid)
        except errors.NotFound:
            return True  # no node, no lock
        except errors.KubeError as error:
            failure = error
            if error.retry is errors.Retry.NEVER:
                break
            await sleep(backoff.next(error.retry_after))
        except wire_errors.WireError as error:
            failure = error
            break
    _log.warning(
        "cannot release the node lock; the scheduler will remove it",
        extra={"node": node, "namespace": namespace, "pod": name, "error": str(failure)},
    )
    return False


async def _release_once(client: Client, node: str, namespace: str, name: str, uid: str) -> bool:
    body = await client.get(paths.nodes(node))
    found = codec.decode(body, objects.Node, what=f"node {node}")
    lock = found.annotation(annotation_keys.NODE_LOCK)
    owner = node_marks.owner_uid(found.annotation(annotation_keys.NODE_LOCK_OWNER), lock)
    if not _is_held_by(lock, namespace, name) or owner not in ("", uid):
        return True
    patch = {
        "metadata": {
            "annotations": {annotation_keys.NODE_LOCK: None},
            "resourceVersion": found.metadata and found.metadata.resource_version,
        }
    }
    await client.patch(paths.nodes(node), codec.encode(patch))
    return True


def _is_held_by(lock: str, namespace: str, name: str) -> bool:
    """Return whether a lock names this pod; a value that is no lock names none."""
    if not lock:
        return False
    try:
        return node_marks.decode_lock(lock).held_by(namespace, name)
    except wire_errors.WireError:
        return False


REASON = "GPUStartRefused"
_TIMES = 3
_WITHIN = 120.0


class RefusedPods:
    """Counts refused starts; reports and marks pods that cannot start."""

    def __init__(
        self,
        client: Client,
        pods: NodePods,
        events: EventRecorder,
        *,
        node: str,
        clock: Callable[[], float] = time.monotonic,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._client = client
        self._pods = pods
        self._events = events
        self._node = node
        self._clock = clock
        self._now = now
        #: By pod UID, the times of its last refusals.
        self._times: dict[str, deque[float]] = {}
        #: By pod UID, the mark that it should have; None: none.
        self._wanted: dict[str, Refusal | None] = {}
        self._writing: dict[str, asyncio.Task[None]] = {}
        pods.add_handler(self._pod_changed)

    def _pod_changed(self, old: Pod | None, new: Pod | None) -> None:
        if new is None and old is not None:
            self._times.pop(old.uid, None)

    def refused(self, uid: str, message: str) -> None:
        """Count a refusal; the third within two minutes sends an event and marks the pod."""
        pod = self._pods.find(uid)
        if pod is None:
            return  # no pod to send an event to, and no deletion that would forget the count
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
        at = dt.datetime.fromtimestamp(self._now(), dt.UTC).isoformat(timespec="seconds")
        self._want(pod, Refusal(uid=pod.uid, node=self._node, reason=message, seen=at))

    def started(self, uid: str) -> None:
        """Remove the mark of a pod, if it has one: it starts after all."""
        self._times.pop(uid, None)
        pod = self._pods.find(uid)
        marked = uid in self._wanted or (
            pod is not None and annotation_keys.START_REFUSED in pod.annotations
        )
        if pod is not None and marked:
            self._want(pod, None)

    def _want(self, pod: Pod, mark: Refusal | None) -> None:
        self._wanted[pod.uid] = mark
        if pod.uid not in self._writing:
            task = asyncio.create_task(self._write(pod), name=f"mark {pod.namespace}/{pod.name}")
            self._writing[pod.uid] = task
            task.add_done_callback(lambda _: self._writing.pop(pod.uid))
            task.add_done_callback(lifetime.log_failure)

    async def _write(self, pod: Pod) -> None:
        """Write what is wanted, until it is written or the pod is deleted."""
        backoff = Backoff()
        while pod.uid in self._wanted:
            mark = self._wanted[pod.uid]
            value = pod_marks.encode(mark) if mark is not None else None
            # Another pod of this name must not be marked.
            metadata = {"uid": pod.uid, "annotations": {annotation_keys.START_REFUSED: value}}
            try:
                await self._client.patch(
                    paths.pods(pod.namespace, pod.name),
                    codec.encode({"metadata": metadata}),
                    timeout=_TIMEOUT,
                )
            except (errors.NotFound, errors.Conflict):
                del self._wanted[pod.uid]
            except errors.KubeError as error:
                wait = backoff.next(error.retry_after)
                about = {"pod": f"{pod.namespace}/{pod.name}", "error": str(error)}
                _log.warning("cannot mark a refused pod yet, retrying", extra=about)
                await asyncio.sleep(wait)
            else:
                if self._wanted.get(pod.uid) is mark:
                    del self._wanted[pod.uid]
