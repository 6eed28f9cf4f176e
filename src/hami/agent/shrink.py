"""Settle smaller shares: prove that processes have released what they had.

A resize to less lowers the limit and takes no memory away, so the ledger counts the larger amounts
(`hami.agent.grants.with_order`). They are released once the container's state file *and* NVML show
that the pod's processes are within the new limits, in three samples over five seconds: libvgpu
takes over a new limit within a second before it allocates, so nothing grows above it any more. NVML
counts by control group, which no process can leave. Without an answer of NVML, or with a process
that cannot be seen from here, there is no proof, and nothing is released.

The ledger is written first, then the pod's annotation `hami.io/vgpu-resized`, by which schedulers
count. It is written again whenever it differs from the ledger.
"""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import NoReturn

import msgspec

from hami.agent.allocator import Allocator
from hami.agent.cards.node_cards import NodeCards
from hami.agent.containers import limits
from hami.agent.errors import RefusalError
from hami.agent.pods import NodePods
from hami.kube import errors, paths
from hami.kube.client import Client
from hami.node import proc, state_reading
from hami.node.files import UntrustedFileError
from hami.node.layout import NodeLayout
from hami.node.ledger_record import LedgerRecord
from hami.node.state_reading import UnreadableError
from hami.wire import annotation_keys, codec, grant, policy_file
from hami.wire import errors as wire_errors
from hami.wire.objects import Pod
from hami.wire.state_file import State

_log = logging.getLogger(__name__)

#: Samples that must agree, and seconds between two of them.
_SAMPLES = 3
_EVERY = 2.5
#: Seconds for one patch.
_TIMEOUT = 5.0
_PROC = Path("/proc")


class Shrinks:
    """Takes samples of pods that hold more than their shares, and answers orders to resize."""

    def __init__(
        self,
        client: Client,
        layout: NodeLayout,
        *,
        pods: NodePods,
        allocator: Allocator,
        cards: NodeCards,
        proc: Path = _PROC,
    ) -> None:
        self._client = client
        self._layout = layout
        self._pods = pods
        self._allocator = allocator
        self._cards = cards
        self._proc = proc
        #: By pod UID, the generation of its limits and the samples below them, one after another.
        self._samples: dict[str, tuple[int, int]] = {}
        #: By pod UID, why its answer was not written: logged once, tried again.
        self._failed: dict[str, str] = {}

    async def run(self) -> NoReturn:
        """Once the pods are known, take samples and answer for ever."""
        await self._pods.informer.wait_synced()
        while True:
            await self._allocator.active.wait()
            await self.update()
            await asyncio.sleep(_EVERY)

    async def update(self) -> None:
        """Take one sample of each pod that has something to release, and write answers."""
        before, self._samples = self._samples, {}
        for record in self._allocator.ledger.records():
            pod = self._pods.find(record.uid)
            if pod is None or pod.finished or not record.resize_seq:
                continue
            if record.unreleased and await self._is_below(record):
                generation, count = before.get(record.uid, (0, 0))
                count = count + 1 if generation == record.generation else 1
                self._samples[record.uid] = record.generation, count
                if count >= _SAMPLES:
                    await self._settle(record)
            # The samples took time: the record may have changed.
            if (now := self._allocator.ledger.get(record.uid)) is not None:
                await self._answer(pod, now)

    async def _settle(self, record: LedgerRecord) -> None:
        def released(now: LedgerRecord) -> LedgerRecord:
            if now.generation != record.generation:
                return now  # another order came meanwhile
            return msgspec.structs.replace(now, unreleased="")

        about = {"pod": f"{record.namespace}/{record.name}", "devices": record.resize}
        try:
            await self._allocator.change(record.uid, released)
        except RefusalError as error:
            _log.warning("cannot release a smaller share yet", extra={**about, "error": str(error)})
        else:
            _log.info("released what a smaller share had before", extra=about)

    # Samples.

    async def _is_below(self, record: LedgerRecord) -> bool:
        """Return whether the pod's processes are proven to be within its shares."""
        used = await asyncio.to_thread(self._by_state_files, record)
        if used is None:
            return False
        allowed: dict[str, int] = {}
        for granted in record.shares:
            for share in granted:
                allowed[share.card] = allowed.get(share.card, 0) + share.memory_bytes
        for card, most in allowed.items():
            if not await self._is_within(record, card, most, by_state_file=used.get(card, 0)):
                return False
        return True

    async def _is_within(
        self, record: LedgerRecord, card: str, most: int, *, by_state_file: int
    ) -> bool:
        """Return whether the driver shows no more than that of a card in the pod's processes."""
        processes = await self._cards.processes(card)
        if processes is None:
            return False
        held, seen = 0, False
        for process in processes:
            inside = await asyncio.to_thread(self._is_inside, process.pid, record.uid)
            if inside is None or (inside and process.memory is None):
                return False
            if inside:
                held, seen = held + (process.memory or 0), True
        if seen:
            return held <= most
        # A driver that shows none of the pod's processes does not show them all.
        return not by_state_file and not await asyncio.to_thread(self._opens, card, record)

    def _opens(self, uuid: str, record: LedgerRecord) -> bool:
        """Return whether a process of the pod has the card open, which no tenant can hide."""
        minors = [
            card.minor
            for card in self._cards.known_cards()
            if card.minor is not None and uuid in (card.uuid, *(part.uuid for part in card.mig))
        ]
        found = proc.openers(self._proc, minors) if minors else {}
        return any(
            pod.uid == record.uid for each in found.values() for one in each for pod in one.pods
        )

    def _by_state_files(self, record: LedgerRecord) -> dict[str, int] | None:
        """Return the bytes of each card in the pod's state files; None: one is above its limit.

        Also None where a file is missing or cannot be read, as of a container without the limiter.
        """
        sums: dict[str, int] = {}
        for allocation in record.allocations:
            try:
                policy = self._layout.policy(allocation.allocation_id).read_bytes()
                if policy_file.decode(policy).generation != record.generation:
                    return None  # the order is not applied yet
                state = state_reading.read_state(self._layout.state(allocation.allocation_id))
            except (UntrustedFileError, UnreadableError, wire_errors.WireError, OSError):
                return None
            if state is None:
                return None
            used = _used(state)
            for share in limits.by_card(record.shares_of(allocation.container_index)):
                if used.get(share.card, 0) > share.memory_bytes:
                    return None
            for card, amount in used.items():
                sums[card] = sums.get(card, 0) + amount
        return sums

    def _is_inside(self, pid: int, uid: str) -> bool | None:
        """Return whether a process belongs to a pod; None: it cannot be seen."""
        try:
            cgroup = proc.read(self._proc, pid, "cgroup")
        except OSError:
            return None
        return any(pod.uid == uid for pod in proc.cgroup_pods(cgroup))

    # Answers.

    async def _answer(self, pod: Pod, record: LedgerRecord) -> None:
        answer = grant.Answer(
            seq=record.resize_seq,
            settled=not record.unreleased,
            devices=record.unreleased or record.resize,
        ).encode()
        if pod.annotation(annotation_keys.RESIZED) == answer:
            self._failed.pop(record.uid, None)
            return
        # The UID makes the server refuse when the name is another pod's by now.
        metadata = {"uid": record.uid, "annotations": {annotation_keys.RESIZED: answer}}
        try:
            body = await self._client.patch(
                paths.pods(record.namespace, record.name),
                codec.encode({"metadata": metadata}),
                timeout=_TIMEOUT,
            )
        except (errors.NotFound, errors.Conflict):
            return
        except errors.KubeError as error:
            if self._failed.get(record.uid) != (why := str(error)):
                self._failed[record.uid] = why
                extra = {"pod": f"{record.namespace}/{record.name}", "error": why}
                _log.warning("cannot answer an order to resize yet, retrying", extra=extra)
        else:
            self._pods.informer.offer(body)


def _used(state: State) -> dict[str, int]:
    """Return the bytes of each card that the living processes in a state file have."""
    used: dict[str, int] = {}
    # A tenant may repeat a card: the first counts.
    indexes = {card.uuid: index for index, card in reversed(list(enumerate(state.cards)))}
    for process in state.processes:
        for uuid, index in indexes.items():
            used[uuid] = used.get(uuid, 0) + process.usage[index].total
    return used
