"""The end of an agent, without a pod that fails for it.

kubelet asks the device plugin once for a pod, when it takes the pod up, and fails the pod for ever
if no plugin answers. So an agent that gets SIGTERM first takes its node out of service, and goes
on serving until kubelet has taken up every pod that is bound to the node already. Container starts
need no such care: kubelet tries them again.

A Binding may be on its way while the node is taken out of service. So nothing new must have come
for a moment before the agent goes, and then the API server is asked once more: the watch may be
behind.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable

from hami.agent.advertise import Advertiser
from hami.agent.kubelet import checkpoint
from hami.agent.kubelet.checkpoint import CheckpointError
from hami.agent.kubelet.registration import Registration
from hami.agent.ledger import Ledger
from hami.agent.node_status import NodeStatus
from hami.agent.pods import NodePods
from hami.agent.static_mig import MigPlugins
from hami.node.layout import NodeLayout
from hami.wire import annotation_keys
from hami.wire.objects import Pod

_log = logging.getLogger(__name__)

#: Seconds without a pod to wait for, after which no Binding is on its way any more.
_QUIET = 2.0
_CHECK_EVERY = 0.2

#: kubelet's mark of the copy of a static pod, which kubelet does not know by the copy's UID.
_STATIC_COPY = "kubernetes.io/config.mirror"


class Drain:
    """Waits until kubelet has taken up the pods of this node."""

    def __init__(
        self,
        layout: NodeLayout,
        resource: str,
        *,
        pods: NodePods,
        ledger: Ledger,
        node: NodeStatus,
        advertiser: Advertiser,
        registration: Registration,
        mig_plugins: MigPlugins,
        timeout: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._checkpoint = layout.checkpoint
        self._resource = resource
        self._pods = pods
        self._ledger = ledger
        self._node = node
        self._advertiser = advertiser
        self._registration = registration
        self._mig_plugins = mig_plugins
        self._timeout = timeout
        self._clock = clock
        #: Why kubelet's checkpoint could not be read the last time.
        self._unreadable = ""

    async def run(self) -> None:
        """Take the node out of service, and wait for its pods, at most for the timeout."""
        if not self._timeout:
            return
        self._advertiser.leave()
        until = self._clock() + self._timeout
        quiet_from = self._clock()
        while not self._registration.taken_over:
            missing = self._missing()
            if missing or not self._is_out_of_service():
                quiet_from = self._clock()
            elif self._clock() - quiet_from >= _QUIET and await self._is_all():
                return
            if self._clock() >= until:
                names = sorted(f"{pod.namespace}/{pod.name}" for pod in missing)
                _log.warning(
                    "kubelet has not taken up all pods in time"
                    if names
                    else "cannot tell the API server in time that this node is out of service",
                    extra={"pods": names},
                )
                return
            await asyncio.sleep(_CHECK_EVERY)

    async def _is_all(self) -> bool:
        """Whether the API server has no other pod for us."""
        return await self._pods.refresh() and not self._missing()

    def _is_out_of_service(self) -> bool:
        return self._pods.synced and (self._node.fulfilled or self._node.silent)

    def _missing(self) -> list[Pod]:
        """Return the pods for which kubelet has yet to ask one of our plugins."""
        waiting = {
            pod.uid: (pod, asking) for pod in self._pods.all() if (asking := self._asking(pod))
        }
        if not waiting:
            return []
        try:
            entries = checkpoint.read(self._checkpoint).entries
            self._unreadable = ""
        except CheckpointError as error:
            if (why := str(error)) != self._unreadable:
                _log.warning("cannot see which pods kubelet has taken up", extra={"error": why})
            self._unreadable, entries = why, ()
        taken_up = {(entry.pod_uid, entry.container, entry.resource) for entry in entries}
        return [
            pod
            for uid, (pod, asking) in waiting.items()
            if any((uid, *each) not in taken_up for each in asking)
        ]

    def _asking(self, pod: Pod) -> list[tuple[str, str]]:
        """Return container and resource of what kubelet will ask for, or has asked for just now."""
        if pod.phase not in ("", "Pending") or pod.deleting or pod.annotation(_STATIC_COPY):
            return []
        known = self._ledger.get(pod.uid)
        served = {each.container for each in known.allocations} if known is not None else set()
        granted = bool(pod.annotation(annotation_keys.SIGNED_DEVICES))
        resources = [*([self._resource] if granted else []), *self._mig_plugins.resources]
        return [
            (container.name or "", resource)
            for _, container in pod.containers()
            for resource in resources
            if container.amount(resource) not in (None, 0, "0")
            and not (resource == self._resource and container.name in served)
        ]
