"""Late binding (D4): identity is settled when it can be known, right before a container is made.

Allocate names a token and no card. Before kubelet has the container made it asks PreStart; by then
its checkpoint says whose the token is. The grant of that pod is taken into the ledger, and policy,
state and CDI spec are laid out; the runtime resolves the token's name after that. A container that
was prepared once starts again from the ledger, without the API server.

Where the node has a lock (D5) kubelet's answer names the cards already; then PreStart verifies that
the container which starts is the one that they were meant for.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
import uuid
from collections.abc import AsyncIterator, Callable

import msgspec

from hami.agent.allocator import Allocator
from hami.agent.errors import RefusalError
from hami.agent.grants import Grants
from hami.agent.identity import CheckpointError, Claim, Held, Identity
from hami.agent.kubelet.kubelet_api import Allocation
from hami.agent.pods import NodePods
from hami.node import layout
from hami.node.ledger_record import AllocationRecord, LedgerRecord
from hami.serving import tracing

_log = logging.getLogger(__name__)

VISIBLE = "NVIDIA_VISIBLE_DEVICES"
#: What shows no card: the runtime that ignores CDI leaves it so.
VOID = "void"
#: Seconds between a spec's renaming and our answer. The runtime hears of the spec by inotify in a
#: thread of its own; kubelet asks it to make the container a few milliseconds after our answer. A
#: known token waits too: a reboot may have taken its spec.
_NOTICED = 0.02


def new_token() -> str:
    return uuid.uuid4().hex


def allocation(token: str) -> Allocation:
    """Answer Allocate for one container: no card yet, and a name that will have a meaning."""
    return Allocation(
        envs={VISIBLE: VOID},
        annotations={layout.TOKEN_ANNOTATION: token},
        cdi_devices=(f"{layout.CDI_KIND}={token}",),
    )


class LateBinding:
    """Turns a token into a container's share."""

    def __init__(
        self,
        *,
        identity: Identity,
        pods: NodePods,
        grants: Grants,
        shares: Allocator,
        pod_wait: float,
        prepared: Callable[[LedgerRecord], None],
        refused: Callable[[str, str], None],
        unreadable: Callable[[CheckpointError], None],
        why_unhealthy: Callable[[str], str],
        tracer: tracing.Tracer,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._identity = identity
        self._pods = pods
        self._grants = grants
        self._shares = shares
        self._pod_wait = pod_wait
        self._prepared = prepared
        #: Pod UID and why.
        self._refused = refused
        #: kubelet's checkpoint cannot be read: late binding must end.
        self._unreadable = unreadable
        #: Of a card by its id; empty: it is healthy.
        self._why_unhealthy = why_unhealthy
        self._tracer = tracer
        self._now = now
        #: By pod UID, whose turn it is and how many are there for it.
        self._turns: dict[str, tuple[asyncio.Lock, int]] = {}

    async def pre_start(self, device_ids: frozenset[str]) -> LedgerRecord:
        """Prepare every container of the pod that holds just these ids; return its record."""
        try:
            claim = self._identity.claim(device_ids)
        except CheckpointError as error:
            self._unreadable(error)
            known = await self._identity.claim_of_known(device_ids, self._shares.ledger.records())
            if known is None:
                raise RefusalError("kubelet's device checkpoint", str(error)) from error
            claim = known
        try:
            async with self._turn_of(claim.uid):
                record = await self._bind(claim, device_ids)
        except RefusalError as error:
            self._refused(claim.uid, str(error))
            raise
        if any(held.cdi for held in claim.held):
            await asyncio.sleep(_NOTICED)
        self._prepared(record)
        return record

    @contextlib.asynccontextmanager
    async def _turn_of(self, uid: str) -> AsyncIterator[None]:
        """Let containers of one pod be prepared one after the other."""
        turn, waiting = self._turns.get(uid, (asyncio.Lock(), 0))
        self._turns[uid] = turn, waiting + 1
        try:
            async with turn:
                yield
        finally:
            # Counted, because a lock that is let go looks free until the next one has it.
            _, waiting = self._turns.pop(uid)
            if waiting > 1:
                self._turns[uid] = turn, waiting - 1

    async def _bind(self, claim: Claim, device_ids: frozenset[str]) -> LedgerRecord:
        if not claim.held:
            return await self._bind_foreign(claim)
        record = self._shares.ledger.get(claim.uid)
        known = record is not None and all(record.token(held.token) for held in claim.held)
        if record is None:
            record = await self._first_sight(claim)
        for held in claim.held:
            self._verify(record, held)
        if not known:
            await self._identity.cross_check(
                device_ids, namespace=record.namespace, name=record.name
            )
            first = record
            record = await self._shares.admit(
                claim.uid, lambda now: _with_tokens(now or first, claim)
            )
        for token in record.tokens:
            if any(held.token == token.token for held in claim.held):
                await self._shares.start(record, token)
        return record

    async def _first_sight(self, claim: Claim) -> LedgerRecord:
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
        check_health(record, self._why_unhealthy)
        return record

    async def _bind_foreign(self, claim: Claim) -> LedgerRecord:
        """Let a container start as HAMi's agent left it; from now on its pod counts here."""
        record = self._shares.ledger.get(claim.uid) or await self._first_sight(claim)
        if not self._grants.allow_unsigned:
            raise RefusalError(
                f"pod {record.namespace}/{record.name}",
                "its containers were given their cards by another agent than hami's",
                "delete the pod to have it placed anew; while HAMi's pods still run here, run the "
                "agents with --allow-unsigned-grants",
            )
        return await self._shares.admit(claim.uid, lambda now: now or record)

    def _verify(self, record: LedgerRecord, held: Held) -> None:
        """Refuse a token that was made for another container, or that fits no grant."""
        what = f"container {held.container} of pod {record.namespace}/{record.name}"
        owner = self._shares.ledger.by_token(held.token)
        if owner is not None and owner.uid != record.uid:
            raise RefusalError(
                what,
                f"kubelet gave it the cards of pod {owner.namespace}/{owner.name}: the two were "
                "allocated in another order than they were bound",
                "delete the pod to have it placed anew",
            )
        token = record.token(held.token)
        if token is not None:
            if token.container != held.container:
                raise RefusalError(
                    what, f"kubelet gave it the share of container {token.container}"
                )
        elif not held.cdi:
            raise RefusalError(
                what,
                "its allocation is not in this node's ledger, and its cards are fixed already",
                "delete the pod to have it placed anew",
            )
        else:
            slot = slot_of(record, held.container)
            granted = len(record.grants_of(slot))
            if granted != len(held.device_ids):
                raise RefusalError(
                    what, f"kubelet gave it {len(held.device_ids)} devices, its grant has {granted}"
                )


def check_health(record: LedgerRecord, why_unhealthy: Callable[[str], str]) -> None:
    """Refuse a pod that would begin on a card that is left out."""
    for slot in record.slots:
        for grant in slot:
            if why := why_unhealthy(grant.card):
                raise RefusalError(
                    f"card {grant.card}",
                    f"is not healthy: {why}",
                    "kubelet tries again; delete the pod to have it placed elsewhere",
                )


def slot_of(record: LedgerRecord, container: str) -> int:
    """Return the position of a container in its pod."""
    for slot, known in enumerate(record.containers):
        if known.name == container:
            return slot
    raise RefusalError(
        f"container {container}", f"pod {record.namespace}/{record.name} has none of that name"
    )


def _with_tokens(record: LedgerRecord, claim: Claim) -> LedgerRecord:
    new = tuple(
        AllocationRecord(
            token=held.token,
            container=held.container,
            slot=slot_of(record, held.container),
            device_ids=tuple(sorted(held.device_ids)),
            cdi=held.cdi,
        )
        for held in claim.held
        if record.token(held.token) is None
    )
    return msgspec.structs.replace(record, tokens=(*record.tokens, *new))
