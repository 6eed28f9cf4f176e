"""Prepare a container at PreStart, when its identity is known.

Allocate answers with an allocation id and no card. Before kubelet has the container created it
calls PreStart; by then its checkpoint says which container has the allocation id. The grant of that
pod is recorded in the ledger, and policy file, state file and CDI spec are written; the runtime
resolves the CDI name after that. A container that was prepared once starts again from the ledger,
without the API server.

On a node with a lock (`hami.agent.lock_binding`) the answer to Allocate names the cards already.
PreStart then verifies that the container which starts is the one that they were meant for. See
docs/designs/001-late-binding.md.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
import uuid
from collections.abc import AsyncIterator, Callable

import msgspec

from hami.agent import allocator as allocations
from hami.agent.allocator import Allocator
from hami.agent.binding_mode import BindingMode
from hami.agent.cards.node_cards import NodeCards
from hami.agent.containers.prepare import VISIBLE, VOID
from hami.agent.errors import RefusalError
from hami.agent.grants import Grants
from hami.agent.identity import CheckpointError, Claim, Held, Identity
from hami.agent.kubelet.kubelet_api import AllocateResponse
from hami.agent.pod_status import PodStatus, RefusedPods
from hami.agent.pods import NodePods
from hami.agent.reconciler import Reconciler
from hami.node import layout
from hami.node.ledger_record import AllocationRecord, LedgerRecord
from hami.serving import tracing

_log = logging.getLogger(__name__)

#: Seconds between a spec's renaming and our answer. The runtime learns of the spec by inotify in a
#: thread of its own; kubelet asks it to create the container a few milliseconds after our answer.
#: A known container waits too: a reboot may have removed its spec.
_INOTIFY_DELAY = 0.02


def new_allocation_id() -> str:
    return uuid.uuid4().hex


def allocate_response(allocation_id: str) -> AllocateResponse:
    """Answer Allocate for one container: no card yet, and a CDI name that PreStart will define."""
    return AllocateResponse(
        envs={VISIBLE: VOID},
        annotations={layout.ALLOCATION_ANNOTATION: allocation_id},
        cdi_devices=(f"{layout.CDI_KIND}={allocation_id}",),
    )


class LateBinding:
    """Turns an allocation id into a container's shares."""

    def __init__(
        self,
        *,
        identity: Identity,
        pods: NodePods,
        cards: NodeCards,
        grants: Grants,
        allocator: Allocator,
        reconciler: Reconciler,
        mode: BindingMode,
        pod_status: PodStatus,
        refused_pods: RefusedPods,
        pod_wait: float,
        tracer: tracing.Tracer,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._identity = identity
        self._pods = pods
        self._cards = cards
        self._grants = grants
        self._allocator = allocator
        self._reconciler = reconciler
        self._mode = mode
        self._pod_status = pod_status
        self._refused_pods = refused_pods
        #: Seconds that a start waits for its pod to be known.
        self._pod_wait = pod_wait
        self._tracer = tracer
        self._now = now
        #: By pod UID, the lock of its starts and how many hold or wait for it.
        self._turns: dict[str, tuple[asyncio.Lock, int]] = {}

    async def pre_start(self, device_ids: frozenset[str]) -> LedgerRecord:
        """Prepare every container of the pod that holds exactly these ids; return its record."""
        self._allocator.check_active()
        try:
            claim = self._identity.claim(device_ids)
        except CheckpointError as error:
            self._mode.unreadable(error)
            records = self._allocator.ledger.records()
            known = await self._identity.claim_of_known(device_ids, records)
            if known is None:
                raise RefusalError("kubelet's device checkpoint", str(error)) from error
            claim = known
        try:
            async with self._turn_of(claim.uid):
                record = await self._bind(claim, device_ids)
        except RefusalError as error:
            self._refused_pods.refused(claim.uid, str(error))
            raise
        if any(held.cdi for held in claim.held):
            await asyncio.sleep(_INOTIFY_DELAY)
        self._pod_status.prepared(record)
        self._refused_pods.started(claim.uid)
        return record

    @contextlib.asynccontextmanager
    async def _turn_of(self, uid: str) -> AsyncIterator[None]:
        """Prepare containers of one pod one after the other."""
        turn, waiting = self._turns.get(uid, (asyncio.Lock(), 0))
        self._turns[uid] = turn, waiting + 1
        try:
            async with turn:
                yield
        finally:
            # Counted, because a released lock seems free until the next waiter has it.
            _, waiting = self._turns.pop(uid)
            if waiting > 1:
                self._turns[uid] = turn, waiting - 1

    async def _bind(self, claim: Claim, device_ids: frozenset[str]) -> LedgerRecord:
        if not claim.held:
            return await self._bind_foreign(claim)
        record = self._allocator.ledger.get(claim.uid)
        known = record is not None and all(
            record.allocation(held.allocation_id) for held in claim.held
        )
        if record is None:
            record = await self._new_record(claim)
        for held in claim.held:
            self._verify(record, held)
        if not known:
            await self._identity.cross_check(
                device_ids, namespace=record.namespace, name=record.name
            )
            first = record
            record = await self._reconciler.admit(
                claim.uid,
                lambda now: _with_allocations(now or self._healthy(first), claim),
            )
        claimed = {held.allocation_id for held in claim.held}
        for allocation in record.allocations:
            if allocation.allocation_id in claimed:
                await self._allocator.start(record, allocation)
        return record

    async def _new_record(self, claim: Claim) -> LedgerRecord:
        pod = await self._pods.wait(claim.uid, self._pod_wait)
        if pod is None:
            raise RefusalError(
                f"pod with UID {claim.uid}",
                f"the API server did not show it on this node within {self._pod_wait:g} s",
                "kubelet tries again; check that the agent reaches the API server",
            )
        with self._tracer.span("prepare", parent=pod.annotation(tracing.ANNOTATION)) as span:
            span.set("pod", f"{pod.namespace}/{pod.name}")
            record = self._grants.record_of(pod, now=self._now())
        return self._healthy(record)

    def _healthy(self, record: LedgerRecord) -> LedgerRecord:
        allocations.check_health(record, self._cards)
        return record

    async def _bind_foreign(self, claim: Claim) -> LedgerRecord:
        """Let a container start as HAMi's agent prepared it; from now on its pod counts here."""
        record = self._allocator.ledger.get(claim.uid) or await self._new_record(claim)
        if not self._grants.allow_unsigned:
            raise RefusalError(
                f"pod {record.namespace}/{record.name}",
                "its containers were given their cards by another agent than hami's",
                "delete the pod to reschedule it; while HAMi's pods still run here, run the "
                "agents with --allow-unsigned-grants",
            )
        return await self._reconciler.admit(claim.uid, lambda now: now or record)

    def _verify(self, record: LedgerRecord, held: Held) -> None:
        """Refuse an allocation that was made for another container or does not match the grant."""
        what = f"container {held.container} of pod {record.namespace}/{record.name}"
        owner = self._allocator.ledger.by_allocation_id(held.allocation_id)
        if owner is not None and owner.uid != record.uid:
            raise RefusalError(
                what,
                f"kubelet gave it the cards of pod {owner.namespace}/{owner.name}: the two were "
                "allocated in another order than they were bound",
                "delete the pod to reschedule it",
            )
        allocation = record.allocation(held.allocation_id)
        if allocation is not None:
            if allocation.container != held.container:
                raise RefusalError(
                    what,
                    f"kubelet gave it the share of container {allocation.container}",
                    "delete the pod to reschedule it",
                )
        elif not held.cdi:
            raise RefusalError(
                what,
                "its allocation is not in this node's ledger, and its cards are fixed already",
                "delete the pod to reschedule it",
            )
        else:
            index = allocations.container_index(record, held.container)
            granted = len(record.shares_of(index))
            if granted != len(held.device_ids):
                raise RefusalError(
                    what,
                    f"kubelet gave it {len(held.device_ids)} devices, its grant has {granted}",
                    "delete the pod to reschedule it",
                )


def _with_allocations(record: LedgerRecord, claim: Claim) -> LedgerRecord:
    new = tuple(
        AllocationRecord(
            allocation_id=held.allocation_id,
            container=held.container,
            container_index=allocations.container_index(record, held.container),
            device_ids=tuple(sorted(held.device_ids)),
            cdi=held.cdi,
        )
        for held in claim.held
        if record.allocation(held.allocation_id) is None
    )
    return msgspec.structs.replace(record, allocations=(*record.allocations, *new))
