"""Place a pod: parse its request, decide, assume it on the node.

/filter places a pod on the best of many nodes, /bind on the one node that kube-scheduler names if
nothing is held there. Both do it here, so that a pod is read and its cards are held the same way.
No step awaits: a decision and the cards held for it belong to the same state of the cluster.
"""

from __future__ import annotations

import logging

from hami.cluster.state import Asked, Cluster
from hami.placement import decide, recheck, request
from hami.placement.decide import Decision, Placement
from hami.placement.request import PodRequest
from hami.scheduler.assumed_pods import AssumedPod, AssumedPods
from hami.scheduler.errors import BindRefusedError, CardsChangedError
from hami.scheduler.refusals import Refusal, Refusals
from hami.scheduler.unschedulable import carried_note
from hami.wire import objects

_log = logging.getLogger(__name__)


class Placer:
    """The one way from a pod to cards that are held for it."""

    def __init__(
        self,
        cluster: Cluster,
        assumed_pods: AssumedPods,
        defaults: request.Defaults,
        *,
        unresolvable: bool = True,
    ) -> None:
        """`unresolvable`: kube-scheduler knows nodes that no preemption would help (from 1.21)."""
        self._cluster = cluster
        self._assumed_pods = assumed_pods
        self._defaults = defaults
        self.refusals = Refusals(cluster, unresolvable=unresolvable)

    def parse(self, pod: objects.Pod) -> PodRequest | None:
        """Read a pod's request; None if it asks for none of our cards. May raise WireError."""
        return request.parse(pod, self._cluster.families, self._defaults)

    def decide(self, wanted: PodRequest, nodes: decide.Names = None) -> Decision:
        """Choose the best of these nodes, or explain why none fits; None is all nodes."""
        return decide.decide(self._cluster, wanted, nodes)

    def decide_or_repeat(
        self, wanted: PodRequest, asked: Asked, asked_nodes: int
    ) -> Decision | Refusal:
        """Choose the best of these nodes, or refuse, if possible as an equal pod was refused."""
        return self.refusals.decide(wanted, asked, asked_nodes)

    def require_fit(self, assumed: AssumedPod) -> None:
        """Raise CardsChangedError if a pod can not be bound with the cards that it holds."""
        if not self._still_fits(assumed):
            raise CardsChangedError

    def _still_fits(self, assumed: AssumedPod) -> bool:
        held = self._assumed_pods.info(assumed)
        return recheck.still_fits(self._cluster, held, assumed.decided_on)

    def check_again(self, assumed: AssumedPod) -> None:
        """Make sure that a pod can be bound with the cards that are held for it.

        Minutes may be over since they were chosen. Where they are not good any more, others of the
        same node are held instead. If none fits, the pod is released and BindRefusedError raised.
        """
        if self._still_fits(assumed):
            return
        decision = self.decide(assumed.request, [assumed.node])
        if decision.winner is None:
            self._assumed_pods.release(assumed.uid)
            raise BindRefusedError(
                f"pod {assumed.key} does not fit on node {assumed.node} any more, which has "
                f"changed since it was chosen: {decision.explanation.summary()}. Nothing to do: "
                "kube-scheduler chooses a node again"
            )
        self._assumed_pods.hold_instead(assumed, decision.winner)
        extra = {"pod": assumed.key, "node": assumed.node}
        _log.info("its node changed, placed again at bind", extra=extra)

    def assume(
        self,
        pod: objects.Pod,
        wanted: PodRequest,
        placement: Placement,
        *,
        explained: bool = False,
    ) -> AssumedPod:
        """Hold the cards of a placement until the pod is bound.

        `explained`: this replica has written an explanation onto the pod. The pod itself shows
        what the leader before us wrote.
        """
        explained = explained or carried_note(pod) is not None
        return self._assumed_pods.assume(pod, wanted, placement, explained=explained)
