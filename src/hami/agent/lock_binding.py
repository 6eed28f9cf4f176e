"""Bind by the node's lock, where kubelet or runtime are too old for late binding.

The scheduler lets one pod at a time between its binding and its last Allocate, and the lock names
that pod. Each Allocate serves its next container, in the order in which kubelet asks: init
containers first. The answer carries cards, limits and library itself. If a container cannot be
served, the pod's status says so; the lock is released either way. See
docs/designs/001-late-binding.md, and docs/designs/006 for the lock.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Collection, Sequence

import msgspec

from hami.agent import allocator as allocations
from hami.agent.allocator import Allocator
from hami.agent.cards.node_cards import NodeCards
from hami.agent.containers.prepare import Edits
from hami.agent.errors import RefusalError
from hami.agent.grants import Grants
from hami.agent.kubelet.kubelet_api import AllocateResponse, Mount
from hami.agent.late_binding import new_allocation_id
from hami.agent.pod_status import SUCCESS, PodStatus
from hami.agent.pods import NodePods
from hami.agent.reconciler import Reconciler
from hami.kube import errors, paths
from hami.kube.client import Client
from hami.node import layout
from hami.node.ledger_record import AllocationRecord, LedgerRecord
from hami.wire import annotation_keys, codec, node_marks
from hami.wire import errors as wire_errors
from hami.wire.objects import Node, Pod

_TIMEOUT = 5.0
ALLOCATING = "allocating"
#: How often, and seconds between, a lock is looked for that the scheduler takes again.
_LOCK_AGAIN, _LOCK_AGAIN_S = 20, 0.1


class LockBinding:
    """Answers Allocate for the pod that the node's lock names."""

    def __init__(
        self,
        client: Client,
        node: str,
        *,
        cards: NodeCards,
        grants: Grants,
        allocator: Allocator,
        reconciler: Reconciler,
        pod_status: PodStatus,
        pods: NodePods,
        to_allocate: str,
        others: Collection[str],
        now: Callable[[], float] = time.time,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._client = client
        self._node = node
        self._cards = cards
        self._grants = grants
        self._allocator = allocator
        self._reconciler = reconciler
        self._pod_status = pod_status
        self._pods = pods
        self._to_allocate = to_allocate
        #: Lists that plugins of other vendors hand out under the same lock.
        self._others = frozenset(others)
        self._now = now
        self._sleep = sleep
        self._turn = asyncio.Lock()

    async def allocate(self, requests: Sequence[tuple[str, ...]]) -> list[AllocateResponse]:
        """Answer for the next containers of the pod that the lock names."""
        async with self._turn:
            pod = await self._locked_pod()
            try:
                return [await self._serve(pod, device_ids) for device_ids in requests]
            except RefusalError:
                if self._is_unserved(pod):
                    self._pod_status.failed(pod)
                raise

    def _is_unserved(self, pod: Pod) -> bool:
        """Return whether this pod is bound here and still lacks cards.

        Otherwise it is another pod that was refused: one that evaded the scheduler while the lock
        named a pod that is not bound yet, or that has all its cards.
        """
        known = self._allocator.ledger.get(pod.uid)
        return pod.node_name == self._node and (known is None or bool(_unserved(known)))

    async def _lock(self) -> str:
        """Return the node's lock; where another plugin has released it, wait for the scheduler.

        The scheduler takes it again for a pod with cards of several vendors.
        """
        for _ in range(_LOCK_AGAIN):
            body = await self._client.get(paths.nodes(self._node), timeout=_TIMEOUT)
            node = codec.decode(body, Node, what=f"node {self._node}")
            if (value := node.annotation(annotation_keys.NODE_LOCK)) or not self._is_awaited():
                return value
            await self._sleep(_LOCK_AGAIN_S)
        return ""

    def _is_awaited(self) -> bool:
        """Return whether a pod that another plugin has served still waits for our cards."""
        return any(
            pod.phase == "Pending"
            and not self._others.isdisjoint(pod.annotations)
            and "," in pod.annotation(self._to_allocate)
            and pod.annotation(annotation_keys.BIND_PHASE) in (SUCCESS, ALLOCATING)
            for pod in self._pods.all()
        )

    async def _locked_pod(self) -> Pod:
        what = f"node {self._node}"
        try:
            value = await self._lock()
            if not value:
                raise RefusalError(
                    what,
                    f"has no annotation {annotation_keys.NODE_LOCK}, so it is not known which pod "
                    "these devices are for",
                    "let hami's scheduler place the pod; delete the pod to reschedule it",
                )
            lock = node_marks.decode_lock(value)
            if not lock.name:
                raise RefusalError(
                    what,
                    f"its lock {value!r} names no pod",
                    "wait until the scheduler removes the lock, then delete the pod to reschedule "
                    "it",
                )
            path = paths.pods(lock.namespace, lock.name)
            return codec.decode(
                await self._client.get(path, timeout=_TIMEOUT), Pod, what=f"pod {lock.name}"
            )
        except (errors.KubeError, wire_errors.WireError) as error:
            raise RefusalError(
                what,
                f"the pod that its lock names cannot be read: {error}",
                "check that the agent reaches the API server; delete the pod to reschedule it",
            ) from error

    async def _serve(self, pod: Pod, device_ids: tuple[str, ...]) -> AllocateResponse:
        first = self._allocator.ledger.get(pod.uid) or self._new_record(pod)
        allocation_id = new_allocation_id()
        record = await self._reconciler.admit(
            pod.uid, lambda now: _with_next(now or self._healthy(first), allocation_id, device_ids)
        )
        allocation = record.allocation(allocation_id)
        assert allocation is not None
        edits = self._allocator.prepare(record, allocation)
        if not _unserved(record):
            self._pod_status.prepared(record)
        return allocate_response(allocation_id, edits)

    def _new_record(self, pod: Pod) -> LedgerRecord:
        return self._healthy(self._grants.record_of(pod, now=self._now()))

    def _healthy(self, record: LedgerRecord) -> LedgerRecord:
        allocations.check_health(record, self._cards)
        return record


def allocate_response(allocation_id: str, edits: Edits) -> AllocateResponse:
    """Answer for one container with everything that it gets."""
    return AllocateResponse(
        envs=dict(edits.env),
        mounts=tuple(
            Mount(
                container_path=str(mount.container),
                host_path=str(mount.host),
                read_only=mount.read_only,
            )
            for mount in edits.mounts
        ),
        annotations={layout.ALLOCATION_ANNOTATION: allocation_id},
    )


def _with_next(
    record: LedgerRecord, allocation_id: str, device_ids: tuple[str, ...]
) -> LedgerRecord:
    """Give the next container without cards an allocation id."""
    index = _next_index(record, len(device_ids))
    allocation = AllocationRecord(
        allocation_id=allocation_id,
        container=record.containers[index].name,
        container_index=index,
        device_ids=tuple(sorted(device_ids)),
        cdi=False,
    )
    return msgspec.structs.replace(record, allocations=(*record.allocations, allocation))


def _unserved(record: LedgerRecord) -> list[int]:
    """Return the indexes of containers that were granted cards and have none yet."""
    served = {allocation.container_index for allocation in record.allocations}
    return [index for index, granted in enumerate(record.shares) if granted and index not in served]


def _next_index(record: LedgerRecord, count: int) -> int:
    what = f"pod {record.namespace}/{record.name}"
    unserved = _unserved(record)
    if not unserved:
        raise RefusalError(
            what,
            "has cards for all its containers, yet kubelet asks for more while it has the lock",
            "delete the pod that does not start to reschedule it",
        )
    granted = len(record.shares_of(unserved[0]))
    if granted != count:
        raise RefusalError(
            f"{what}, container {record.containers[unserved[0]].name}",
            f"kubelet asks for {count} devices, its grant has {granted}",
            "delete the pod to reschedule it",
        )
    return unserved[0]
