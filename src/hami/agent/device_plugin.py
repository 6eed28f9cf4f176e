"""The device plugin for shares: kubelet's calls and their answers.

The binding mode is read again at every Allocate. PreStart serves both modes whatever the node's
mode is by then, because kubelet's own checkpoint has what a container was promised.

GetPreferredAllocation names the ids of the cards that a pod was granted. Nothing in hami depends on
it, but tools that map kubelet's ids to pods by name, such as DCGM's exporter, are right only then.
kubelet does not say for which pod it asks, so the pod that was bound first and has no cards yet is
assumed.
"""

from __future__ import annotations

import logging
import time
from collections.abc import AsyncIterator, Sequence

from hami.agent import late_binding
from hami.agent.binding_mode import BindingMode
from hami.agent.cards import device_ids
from hami.agent.cards.device_ids import ListedDevice
from hami.agent.errors import RefusalError
from hami.agent.kubelet.kubelet_api import AllocateResponse
from hami.agent.kubelet.plugin_server import DeviceList
from hami.agent.late_binding import LateBinding
from hami.agent.ledger import Ledger
from hami.agent.lock_binding import LockBinding
from hami.agent.metrics import Metrics
from hami.agent.pods import NodePods
from hami.wire import annotation_keys, errors, shares
from hami.wire.objects import Pod

_log = logging.getLogger(__name__)

LATE, LOCK = "late", "lock"
_DIGITS = 20


class VgpuPlugin:
    """Answers kubelet for the resource that counts shares, and measures its answers."""

    pre_start_required = True

    def __init__(
        self,
        resource: str,
        *,
        device_list: DeviceList[ListedDevice],
        mode: BindingMode,
        late_binding: LateBinding,
        lock_binding: LockBinding,
        preference: Preference,
        preferred_allocation: bool,
        metrics: Metrics,
    ) -> None:
        self.resource = resource
        self.preferred_allocation = preferred_allocation
        self._device_list = device_list
        self._mode = mode
        self._late_binding = late_binding
        self._lock_binding = lock_binding
        self._preference = preference
        self._metrics = metrics

    def devices(self) -> AsyncIterator[Sequence[ListedDevice]]:
        return self._device_list.watch()

    async def allocate(self, requests: Sequence[tuple[str, ...]]) -> list[AllocateResponse]:
        mode = LATE if await self._mode.is_late() else LOCK
        begin = time.monotonic()
        try:
            if mode == LATE:
                ids = [late_binding.new_allocation_id() for _ in requests]
                answers = [late_binding.allocate_response(each) for each in ids]
            else:
                answers = await self._lock_binding.allocate(requests)
        except RefusalError:
            self._metrics.allocated(mode, "refused", time.monotonic() - begin)
            raise
        self._metrics.allocated(mode, "ok", time.monotonic() - begin)
        _log.info("Allocate", extra={"mode": mode, "device_ids": [list(one) for one in requests]})
        return answers

    async def pre_start(self, device_ids: frozenset[str]) -> None:
        begin = time.monotonic()
        try:
            record = await self._late_binding.pre_start(device_ids)
        except RefusalError:
            self._metrics.pre_started("refused", time.monotonic() - begin)
            raise
        took = time.monotonic() - begin
        self._metrics.pre_started("ok", took)
        pod = f"{record.namespace}/{record.name}"
        _log.info(
            "PreStart",
            extra={"device_ids": sorted(device_ids), "pod": pod, "ms": round(took * 1000, 1)},
        )

    async def preferred(
        self, available: Sequence[str], must_include: Sequence[str], size: int
    ) -> tuple[str, ...]:
        return self._preference.prefer(available, must_include, size)


class Preference:
    """Chooses device ids that are named after the granted cards."""

    def __init__(self, pods: NodePods, ledger: Ledger) -> None:
        self._pods = pods
        self._ledger = ledger
        #: Pod UID and container index of those for which kubelet has asked.
        self._answered: set[tuple[str, int]] = set()
        pods.subscribe(self._pod_changed)

    def _pod_changed(self, old: Pod | None, new: Pod | None) -> None:
        if new is None and old is not None:
            self._answered = {each for each in self._answered if each[0] != old.uid}

    def prefer(
        self, available: Sequence[str], must_include: Sequence[str], size: int
    ) -> tuple[str, ...]:
        """Return the ids to take; empty: kubelet chooses."""
        for pod in sorted(self._without_cards(), key=_bound_at):
            try:
                grant = shares.decode(pod.annotation(annotation_keys.SIGNED_DEVICES))
            except errors.WireError:
                continue
            for index, granted in enumerate(grant):
                if len(granted) != size or (pod.uid, index) in self._answered:
                    continue
                self._answered.add((pod.uid, index))
                cards = [share.card for share in granted]
                return device_ids.preferred(available, must_include, size, cards)
        return ()

    def _without_cards(self) -> list[Pod]:
        return [
            pod
            for pod in self._pods.all()
            if not pod.finished
            and pod.annotation(annotation_keys.SIGNED_DEVICES)
            and self._ledger.get(pod.uid) is None
        ]


def _bound_at(pod: Pod) -> tuple[int, str]:
    bound = pod.annotation(annotation_keys.BIND_TIME)
    # A user who may patch pods can write anything here, also a number that takes minutes to parse.
    when = int(bound) if bound.isdecimal() and len(bound) <= _DIGITS else 0
    return when, f"{pod.namespace}/{pod.name}"
