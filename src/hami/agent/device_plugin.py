"""The device plugin for shares: kubelet's calls and their answers.

Which device ids kubelet should take for the next container: those named after its cards.
Nothing depends on it but what others believe: tools that map kubelet's ids to pods, as DCGM's
exporter does, are right where the ids are the granted cards' (user-pains 33). kubelet does not say
for whom it asks, so the oldest pod that still waits is meant.

The device plugin for shares of cards: what kubelet asks, and who answers.
Which way Allocate goes is decided anew each time: what a container was promised stands in kubelet's
own record, so PreStart serves both kinds whatever the node does by now.
"""

from __future__ import annotations

import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

from hami.agent import late_binding
from hami.agent.cards import device_ids
from hami.agent.cards.device_ids import ListedDevice
from hami.agent.errors import RefusalError
from hami.agent.kubelet.kubelet_api import Allocation
from hami.agent.kubelet.plugin_server import DeviceList
from hami.agent.late_binding import LateBinding
from hami.agent.ledger import Ledger
from hami.agent.lock_binding import LockBinding
from hami.agent.metrics import Metrics
from hami.agent.pods import NodePods
from hami.wire import annotation_keys, errors, shares
from hami.wire.objects import Pod

_DIGITS = 20


class Preference:
    def __init__(self, pods: NodePods, ledger: Ledger) -> None:
        self._pods = pods
        self._ledger = ledger
        #: Pod UID and slot of those for whom kubelet has asked.
        self._given: set[tuple[str, int]] = set()
        pods.add_handler(self._forget)

    def _forget(self, old: Pod | None, new: Pod | None) -> None:
        if new is None and old is not None:
            self._given = {given for given in self._given if given[0] != old.uid}

    def prefer(
        self, available: Sequence[str], must_include: Sequence[str], size: int
    ) -> tuple[str, ...]:
        """Return the ids to take, or none: then kubelet chooses."""
        for pod in sorted(self._waiting(), key=_bound_at):
            try:
                slots = shares.decode(pod.annotation(annotation_keys.SIGNED_DEVICES))
            except errors.WireError:
                continue
            for slot, grants in enumerate(slots):
                if len(grants) != size or (pod.uid, slot) in self._given:
                    continue
                self._given.add((pod.uid, slot))
                cards = [grant.card for grant in grants]
                return device_ids.preferred(available, must_include, size, cards)
        return ()

    def _waiting(self) -> list[Pod]:
        return [
            pod
            for pod in self._pods.all()
            if not pod.finished
            and pod.annotation(annotation_keys.SIGNED_DEVICES)
            and self._ledger.get(pod.uid) is None
        ]


def _bound_at(pod: Pod) -> tuple[int, str]:
    bound = pod.annotation(annotation_keys.BIND_TIME)
    # Whoever may patch a pod can write anything there, also a number that takes minutes to read.
    when = int(bound) if bound.isdecimal() and len(bound) <= _DIGITS else 0
    return when, f"{pod.namespace}/{pod.name}"


_log = logging.getLogger(__name__)

LATE, LOCK = "late", "lock"


class VgpuPlugin:
    pre_start_required = True

    def __init__(
        self,
        resource: str,
        *,
        is_late: Callable[[], Awaitable[bool]],
        binder: LateBinding,
        lock_binding: LockBinding,
        preferring: Preference,
        preferred_allocation: bool,
        instruments: Metrics,
    ) -> None:
        self.resource = resource
        self.preferred_allocation = preferred_allocation
        self._is_late = is_late
        self._binder = binder
        self._lock_binding = lock_binding
        self._preferring = preferring
        self._instruments = instruments
        #: What kubelet is told; whoever knows of a change sets it.
        self.list: DeviceList[ListedDevice] = DeviceList()

    def devices(self) -> AsyncIterator[Sequence[ListedDevice]]:
        return self.list.watch()

    async def allocate(self, requests: Sequence[tuple[str, ...]]) -> list[Allocation]:
        mode = LATE if await self._is_late() else LOCK
        begin = time.monotonic()
        try:
            if mode == LATE:
                answers = [late_binding.allocation(late_binding.new_token()) for _ in requests]
            else:
                answers = await self._lock_binding.allocate(requests)
        except RefusalError:
            self._instruments.allocated(mode, "refused", time.monotonic() - begin)
            raise
        self._instruments.allocated(mode, "ok", time.monotonic() - begin)
        _log.info("Allocate", extra={"mode": mode, "device_ids": [list(one) for one in requests]})
        return answers

    async def pre_start(self, device_ids: frozenset[str]) -> None:
        begin = time.monotonic()
        try:
            record = await self._binder.pre_start(device_ids)
        except RefusalError:
            self._instruments.pre_started("refused", time.monotonic() - begin)
            raise
        took = time.monotonic() - begin
        self._instruments.pre_started("ok", took)
        pod = f"{record.namespace}/{record.name}"
        _log.info(
            "PreStart",
            extra={"device_ids": sorted(device_ids), "pod": pod, "ms": round(took * 1000, 1)},
        )

    async def preferred(
        self, available: Sequence[str], must_include: Sequence[str], size: int
    ) -> tuple[str, ...]:
        return self._preferring.prefer(available, must_include, size)
