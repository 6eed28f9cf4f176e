"""The end of an agent, without a pod that fails for it.

kubelet asks the device plugin once for a pod, when it takes the pod up, and fails the pod for ever
if no plugin answers. So an agent that gets SIGTERM first takes its node out of service, and goes
on serving until kubelet has taken up every pod that is bound to the node already. Container starts
need no such care: kubelet tries them again.

A Binding may be on its way while the node is taken out of service. So nothing new must have come
for a moment before the agent goes.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable

from hami.agent.advertise import Advertiser
from hami.agent.kubelet import checkpoint
from hami.agent.kubelet.checkpoint import CheckpointError
from hami.agent.ledger import Ledger
from hami.agent.node_status import NodeStatus
from hami.agent.pods import NodePods
from hami.node.layout import NodeLayout
from hami.wire import annotation_keys
from hami.wire.objects import Pod

_log = logging.getLogger(__name__)

#: Seconds without a new pod after which no Binding is on its way any more.
_QUIET = 2.0
_CHECK_EVERY = 0.2


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
        timeout: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._checkpoint = layout.checkpoint
        self._resource = resource
        self._pods = pods
        self._ledger = ledger
        self._node = node
        self._advertiser = advertiser
        self._timeout = timeout
        self._clock = clock

    async def run(self) -> None:
        """Take the node out of service, and wait for its pods, at most for the timeout."""
        if not self._timeout:
            return
        self._advertiser.leave()
        until = self._clock() + self._timeout
        quiet_from = self._clock()
        seen: set[str] = set()
        while True:
            missing = self._missing()
            uids = {pod.uid for pod in missing}
            if not (self._node.fulfilled or self._node.silent) or not uids <= seen:
                quiet_from = self._clock()
            seen |= uids
            if not missing and self._clock() - quiet_from >= _QUIET:
                return
            if self._clock() >= until:
                names = sorted(f"{pod.namespace}/{pod.name}" for pod in missing)
                _log.warning("kubelet has not taken up all pods in time", extra={"pods": names})
                return
            await asyncio.sleep(_CHECK_EVERY)

    def _missing(self) -> list[Pod]:
        """Return the pods with a grant for which kubelet has not asked the plugin yet."""
        waiting = [
            pod
            for pod in self._pods.all()
            if pod.annotation(annotation_keys.SIGNED_DEVICES)
            and not pod.finished
            and not pod.deleting
            and self._ledger.get(pod.uid) is None
        ]
        if not waiting:
            return []
        try:
            entries = checkpoint.read(self._checkpoint).entries
        except CheckpointError as error:
            _log.warning("cannot see which pods kubelet has taken up", extra={"error": str(error)})
            return waiting
        taken_up = {entry.pod_uid for entry in entries if entry.resource == self._resource}
        return [pod for pod in waiting if pod.uid not in taken_up]
