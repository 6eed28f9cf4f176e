"""Which device ids kubelet should take for the next container: those named after its cards.

Nothing depends on it but what others believe: tools that map kubelet's ids to pods, as DCGM's
exporter does, are right where the ids are the granted cards' (user-pains 33). kubelet does not say
for whom it asks, so the oldest pod that still waits is meant.
"""

from __future__ import annotations

from collections.abc import Sequence

from hami.agent.cards import device_ids
from hami.agent.ledger import Ledger
from hami.agent.pods import NodePods
from hami.wire import annotation_keys, errors, pod_devices
from hami.wire.objects import Pod

_DIGITS = 20


class Preferring:
    def __init__(self, pods: NodePods, ledger: Ledger) -> None:
        self._pods = pods
        self._ledger = ledger
        #: Pod UID and slot of those for whom kubelet has asked.
        self._given: set[tuple[str, int]] = set()
        pods.subscribe(self._forget)

    def _forget(self, old: Pod | None, new: Pod | None) -> None:
        if new is None and old is not None:
            self._given = {given for given in self._given if given[0] != old.uid}

    def prefer(
        self, available: Sequence[str], must_include: Sequence[str], size: int
    ) -> tuple[str, ...]:
        """Return the ids to take, or none: then kubelet chooses."""
        for pod in sorted(self._waiting(), key=_bound_at):
            try:
                slots = pod_devices.decode(pod.annotation(annotation_keys.SIGNED_DEVICES))
            except errors.WireError:
                continue
            for slot, grants in enumerate(slots):
                if len(grants) != size or (pod.uid, slot) in self._given:
                    continue
                self._given.add((pod.uid, slot))
                cards = [grant.uuid for grant in grants]
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
