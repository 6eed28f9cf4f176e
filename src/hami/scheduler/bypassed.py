"""Pods that got onto a node with a request for cards, but past admission and past us.

The webhook may have been down with failurePolicy Ignore, the pod labelled to be ignored, or its
scheduler another one. Nobody chose cards for such a pod. The node agent will not start it, and
until somebody notices, it waits there: so it is counted, and told on the pod.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable

from hami.admission import cards
from hami.scheduler.telling import Teller
from hami.scheduler.world import World
from hami.vendors.row import Vendor
from hami.wire import objects

_log = logging.getLogger(__name__)


class Bypassed:
    def __init__(
        self,
        world: World,
        teller: Teller,
        *,
        leads: Callable[[], bool],
        scheduler_name: str,
    ) -> None:
        self._vendors: Iterable[Vendor] = tuple(world.cluster.vendors.values())
        self._teller = teller
        self._leads = leads
        self._scheduler_name = scheduler_name
        self._uids: set[str] = set()
        world.pod_seen.listen(self._seen)
        world.pod_gone.listen(self._uids.discard)

    def __len__(self) -> int:
        return len(self._uids)

    def _seen(self, pod: objects.Pod) -> None:
        missed = self._missed(pod)
        if missed is None:
            self._uids.discard(pod.uid)
            return
        if pod.uid in self._uids:
            return
        self._uids.add(pod.uid)
        # Every replica sees it; one is enough to tell.
        if not self._leads():
            return
        named = (pod.spec and pod.spec.scheduler_name) or "none"
        message = (
            f"bound to {pod.node_name} without a card: it asks for {missed.resources.count}, but "
            f"was placed by schedulerName {named} and not by {self._scheduler_name}. Delete it and "
            "create it again where admission sees it: no label hami.io/webhook=ignore, no "
            "schedulerName of its own, and the webhook up"
        )
        extra = {"pod": f"{pod.namespace}/{pod.name}", "node": pod.node_name, "scheduler": named}
        _log.warning("a pod got past admission", extra=extra)
        self._teller.bypassed(pod, message)

    def _missed(self, pod: objects.Pod) -> Vendor | None:
        """Return the vendor whose cards a bound pod asks for and was not given."""
        if not pod.node_name or pod.finished:
            return None
        for vendor in self._vendors:
            if pod.annotation(vendor.annotations.allocated):
                continue
            if any(cards.wants(container, vendor) for _, container in pod.containers()):
                return vendor
        return None
