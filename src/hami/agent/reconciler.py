"""Reconcile the ledger with pods, kubelet's checkpoint and files.

Release: a pod's record is removed when the pod has ended, or when the API server says that there is
no such pod. The informer alone is not enough, because it may be behind. As long as a process of the
pod runs, the pod keeps what it holds (a pod deleted by force: `hami.agent.leftover_pods`).

Recover: a running pod may be missing from the ledger after a lost disk, a damaged record, or
because HAMi's own agent started it. kubelet's checkpoint has its allocation ids and the API server
its signed grant. What both agree on is recorded, so that a card's share is not given twice. An
allocation id that was made for another pod is refused: under the node lock kubelet may have given
it to the wrong pod, which must not start.

Clean up: files of allocation ids that neither ledger nor checkpoint knows are removed, but never
while a record cannot be read or while a process uses them.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple, NoReturn

import msgspec

from hami.agent import allocator as allocations
from hami.agent.allocator import Allocator, CardFull, Change
from hami.agent.containers import cdi_spec, library, limits
from hami.agent.containers.library import Library
from hami.agent.containers.prepare import VISIBLE, Preparer
from hami.agent.containers.state_files import StateFiles
from hami.agent.errors import AgentError, RefusalError
from hami.agent.grants import Grants, with_order
from hami.agent.kubelet import checkpoint
from hami.agent.kubelet.checkpoint import CheckpointError, Entry
from hami.agent.kubelet.kubelet_api import AllocateResponse
from hami.agent.leftover_pods import LeftoverPods
from hami.agent.pod_status import PodStatus
from hami.agent.pods import NodePods
from hami.kube import errors, paths
from hami.kube.client import Client
from hami.node.layout import NodeLayout
from hami.node.ledger_record import AllocationRecord, LedgerRecord
from hami.wire import codec, policy_file
from hami.wire import errors as wire_errors
from hami.wire.objects import Pod
from hami.wire.shares import Share

_log = logging.getLogger(__name__)

#: Seconds between two rounds without a cause, and while a pod has ended and its processes have not.
_EVERY = 5.0
_LEFTOVER_EVERY = 1.0
#: Seconds for one question to the API server.
_TIMEOUT = 5.0
#: Seconds that a grant waits for deleted pods whose processes are still ending.
_PATIENCE = 10.0
_RETRY_EVERY = 0.25

Recovered = Callable[[LedgerRecord], None]


class _KubeletAllocation(NamedTuple):
    """One of our answers, as kubelet's checkpoint has it."""

    allocation_id: str
    entry: Entry
    response: AllocateResponse


class Reconciler:
    """Keeps the ledger equal to the pods that hold cards of this node."""

    def __init__(
        self,
        client: Client,
        layout: NodeLayout,
        resource: str,
        *,
        pods: NodePods,
        grants: Grants,
        allocator: Allocator,
        preparer: Preparer,
        states: StateFiles,
        library: Library,
        leftovers: LeftoverPods,
        pod_status: PodStatus,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._client = client
        self._layout = layout
        self._resource = resource
        self._pods = pods
        self._grants = grants
        self._allocator = allocator
        self._ledger = allocator.ledger
        self._preparer = preparer
        self._states = states
        self._library = library
        self._leftovers = leftovers
        self._pod_status = pod_status
        self._clock = clock
        self._requested = asyncio.Event()
        self._releasing = asyncio.Lock()
        self._recovering = asyncio.Lock()
        #: Whether pods that an earlier agent started were recovered since the start.
        self._recovered_once = False
        #: By pod UID, why it was not recovered: logged once, tried again.
        self._refused: dict[str, str] = {}
        self._handlers: list[Recovered] = []
        pods.add_handler(self._pod_changed)

    def add_handler(self, handler: Recovered) -> None:
        """Call the handler with the record of every pod that was recovered."""
        self._handlers.append(handler)

    def request(self) -> None:
        """Start a round soon."""
        self._requested.set()

    def _pod_changed(self, _old: Pod | None, new: Pod | None) -> None:
        if new is None or new.finished:
            self.request()

    async def admit(self, uid: str, change: Change, *, patience: float = _PATIENCE) -> LedgerRecord:
        """Add or update a pod's record, releasing deleted pods where the cards are full.

        A new pod waits until running pods that the ledger has lost are recovered: their cards are
        taken. RefusalError: it does not fit. `patience`: seconds that deleted pods get to end their
        processes.
        """
        if self._ledger.get(uid) is None:
            await self._allocator.wait_ready()
            await self._recover_first()
        return await self._admit(uid, change, patience=patience)

    async def _admit(self, uid: str, change: Change, *, patience: float) -> LedgerRecord:
        deadline = self._clock() + patience
        last = False
        while True:
            try:
                return await self._allocator.admit(uid, change)
            except CardFull:
                if last:
                    raise
            ending = await self.release_deleted_pods()
            last = not ending or self._clock() >= deadline
            if not last:
                await asyncio.sleep(_RETRY_EVERY)

    async def restore(self) -> NoReturn:
        """Once the cards are known, write again what a reboot removed."""
        await self._allocator.wait_cards()
        await self._allocator.active.wait()
        self._allocator.restore()
        self.request()
        await asyncio.Event().wait()
        raise AssertionError

    async def run(self) -> NoReturn:
        """Once the pods are known, write outstanding pod statuses, then reconcile for ever."""
        await self._pods.informer.wait_synced()
        for record in self._ledger.records():
            if record.allocations:
                self._pod_status.prepared(record)
        while True:
            await self._allocator.active.wait()
            self._requested.clear()
            await self.release_deleted_pods()
            try:
                await self.recover_and_clean_up()
            except (AgentError, OSError) as error:
                _log.debug("cannot check for orphaned files", extra={"error": str(error)})
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_LEFTOVER_EVERY if self._leftovers.records else _EVERY):
                    await self._requested.wait()

    # Release.

    async def release_deleted_pods(self) -> bool:
        """Remove records of pods that have ended; return whether one still has processes."""
        async with self._releasing:
            if not (self._pods.synced and self._allocator.active.is_set()):
                return False
            ended = [record for record in self._ledger.records() if await self._has_ended(record)]
            await self._leftovers.check([r for r in ended if self._pods.find(r.uid) is None])
            busy = []
            for record in ended:
                about = {"pod": f"{record.namespace}/{record.name}", "uid": record.uid}
                try:
                    if self._leftovers.is_busy(record):
                        busy.append(record)
                        continue
                    await self._allocator.remove(record.uid)
                except (AgentError, OSError) as error:
                    # The record stays and counts; the other pods are still released.
                    _log.warning("cannot release cards yet", extra={**about, "error": str(error)})
                else:
                    _log.info("released cards", extra=about)
            self._leftovers.keep(busy)
            return bool(busy)

    async def _has_ended(self, record: LedgerRecord) -> bool:
        pod = self._pods.find(record.uid)
        if pod is not None:
            return pod.finished
        path = paths.pods(record.namespace, record.name)
        try:
            body = await self._client.get(path, timeout=_TIMEOUT)
            found = codec.decode(body, Pod, what="pod")
        except errors.NotFound:
            return True
        except (errors.KubeError, wire_errors.WireError):
            return False  # not certain, so the pod keeps its cards
        return found.uid != record.uid or found.finished

    # Recover.

    async def recover_and_clean_up(self) -> None:
        """Record running pods that the ledger does not know; remove files without an owner."""
        self._ledger.recheck_damaged()
        await self.recover_pods()
        self.remove_orphaned_files()

    async def _recover_first(self) -> None:
        """Recover pods before the first new one is recorded."""
        if not self._recovered_once:
            try:
                await self.recover_pods()
            except (AgentError, OSError) as error:
                _log.warning("cannot recover running pods", extra={"error": str(error)})

    async def recover_pods(self) -> None:
        """Record every pod of kubelet's checkpoint that holds allocations of ours."""
        async with self._recovering:
            if self._allocator.ready and self._allocator.active.is_set():
                complete = self._pods.synced
                await self._recover_pods()
                self._recovered_once = self._recovered_once or complete

    async def _recover_pods(self) -> None:
        refused_before = self._refused
        self._refused = {}
        prepared = self._prepared()
        if self._grants.allow_unsigned:
            prepared = {uid: [] for uid in self._foreign()} | prepared
        for uid, held in prepared.items():
            pod = self._pods.find(uid)
            if pod is None or pod.finished or self._ledger.get(uid) is not None:
                continue
            try:
                found = self._with_allocations(self._grants.record_of(pod, now=time.time()), held)
                found = self._with_resize(pod, found)
                record = await self._admit(uid, _unless_known(found), patience=0)
            except RefusalError as error:
                self._refused[uid] = why = str(error)
                if refused_before.get(uid) != why:
                    _log.warning(
                        "cannot record a running pod that the ledger does not know",
                        extra={"uid": uid, "error": why},
                    )
            else:
                _log.info(
                    "recorded a running pod that the ledger did not know",
                    extra={"pod": f"{pod.namespace}/{pod.name}", "uid": uid},
                )
                self._recovered(record)

    def _recovered(self, record: LedgerRecord) -> None:
        self._pod_status.prepared(record)
        for handler in self._handlers:
            handler(record)

    def _prepared(self) -> dict[str, list[_KubeletAllocation]]:
        """Return the allocations that were prepared once, by pod UID."""
        found: dict[str, list[_KubeletAllocation]] = {}
        for held in self._ours():
            # Without files it was never started: its PreStart will record it.
            if self._layout.allocation_folder(held.allocation_id).is_dir():
                found.setdefault(held.entry.pod_uid, []).append(held)
        return found

    def _foreign(self) -> list[str]:
        """Return the UIDs of pods that another agent gave cards of this node."""
        ours = checkpoint.allocation_id_of
        return [entry.pod_uid for entry, answer in self._responses() if ours(answer) is None]

    def _with_allocations(
        self, record: LedgerRecord, held: Sequence[_KubeletAllocation]
    ) -> LedgerRecord:
        found = tuple(self._allocation(record, *each) for each in held)
        return msgspec.structs.replace(record, allocations=found)

    def _with_resize(self, pod: Pod, record: LedgerRecord) -> LedgerRecord:
        """Count the resize that the policy files of a pod already have; others come later."""
        try:
            order = self._grants.resize_of(pod, record)
        except RefusalError:
            return record  # the resizer reports it
        if order is None:
            return record
        resized = with_order(record, order)
        enforced = [self._is_enforced(resized, each) for each in record.allocations]
        return resized if enforced and all(enforced) else record

    def _is_enforced(self, record: LedgerRecord, allocation: AllocationRecord) -> bool:
        policy = self._policy(allocation.allocation_id)
        wanted = limits.by_card(record.shares_of(allocation.container_index))
        return policy is not None and _amounts(policy.shares) == _amounts(wanted)

    def _allocation(
        self, record: LedgerRecord, allocation_id: str, entry: Entry, response: AllocateResponse
    ) -> AllocationRecord:
        index = allocations.container_index(record, entry.container)
        cards = ",".join(share.card for share in limits.by_card(record.shares_of(index)))
        cdi = bool(response.cdi_devices)
        owner = self._owner(allocation_id)
        if (owner and owner != record.uid) or (not cdi and response.envs.get(VISIBLE) != cards):
            raise RefusalError(
                f"container {entry.container} of pod {record.namespace}/{record.name}",
                f"kubelet gave it the cards that were prepared for pod {owner or '(unknown)'}",
                "delete the pod to reschedule it",
            )
        return AllocationRecord(
            allocation_id=allocation_id,
            container=entry.container,
            container_index=index,
            device_ids=tuple(sorted(entry.device_ids)),
            cdi=cdi,
        )

    def _owner(self, allocation_id: str) -> str:
        """Return the UID of the pod that an allocation id was made for; empty: not known."""
        known = self._ledger.by_allocation_id(allocation_id)
        if known is not None:
            return known.uid
        policy = self._policy(allocation_id)
        return policy.pod_uid if policy is not None else ""

    def _policy(self, allocation_id: str) -> policy_file.Policy | None:
        try:
            return policy_file.decode(self._layout.policy(allocation_id).read_bytes())
        except (OSError, wire_errors.WireError):
            return None

    def _ours(self) -> Iterator[_KubeletAllocation]:
        for entry, response in self._responses():
            if (allocation_id := checkpoint.allocation_id_of(response)) is not None:
                yield _KubeletAllocation(allocation_id, entry, response)

    def _responses(self) -> Iterator[tuple[Entry, AllocateResponse]]:
        for entry in checkpoint.read(self._layout.checkpoint).entries:
            if entry.resource == self._resource:
                with contextlib.suppress(CheckpointError):  # PreStart refuses that container
                    yield entry, entry.response()

    # Clean up.

    def remove_orphaned_files(self) -> None:
        """Remove files of allocation ids that no pod has; not while a record is unreadable."""
        if self._ledger.damaged or not (self._pods.synced and self._allocator.active.is_set()):
            return
        known = self._ledger.by_allocation_id
        orphans = {each for each in self._preparer.allocation_ids() if known(each) is None}
        if not orphans:
            return
        held = {x.allocation_id for x in self._ours() if self._pods.find(x.entry.pod_uid)}
        for allocation_id in sorted(orphans - held):
            if self._states.busy(allocation_id):
                continue
            about = {"allocation_id": allocation_id}
            try:
                self._preparer.forget(allocation_id)
            except AgentError as error:
                _log.warning("cannot remove orphaned files", extra={**about, "error": str(error)})
            else:
                _log.info("removed orphaned files", extra=about)

    def prune_libraries(self) -> None:
        """Remove libraries of earlier versions that no container mounts."""
        mounted_by_specs = cdi_spec.libraries_in_use(self._layout)
        try:
            entries = checkpoint.read(self._layout.checkpoint).entries
            mounts = [mount for entry in entries for mount in entry.response().mounts]
        except CheckpointError:
            return  # it is not known what is in use
        if mounted_by_specs is not None:
            in_answers = {library.digest_of(self._layout, mount.host_path) for mount in mounts}
            self._library.prune(mounted_by_specs | in_answers)


def _amounts(shares: Sequence[Share]) -> list[tuple[str, int, int | None]]:
    return [(share.card, share.memory_mib, share.core_limit) for share in shares]


def _unless_known(found: LedgerRecord) -> Change:
    return lambda known: known or found
