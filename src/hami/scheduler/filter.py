"""/filter: choose a node for a pod, or answer a simulation.

The answer to kube-scheduler names one node, and the pod's cards there are held before it is sent:
the next pod is decided while this one is on its way to /bind. Nothing is written to the API
server. Refused nodes are called unresolvable: kube-scheduler then imagines no preemption there,
which could only evict pods in vain, since it does not count cards.

kube-scheduler asks about a nominated node alone before it asks about all. That is a probe: if it is
refused, the real question follows at once, so nothing is noted or reported. If no other node is
eligible, the real question is the same one again.

Requests with whole nodes come from autoscalers, which ask whether a pod would fit on nodes that
exist or on templates of nodes that could. On a node with a known name the pods placed there count;
a template is empty. A simulation holds no cards, sends no event and leaves no explanation.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Sequence

import msgspec

from hami.cluster import state
from hami.cluster.pod_info import Hold
from hami.cluster.state import Asked, Cluster
from hami.placement import decide
from hami.placement.explanation import Explanation
from hami.placement.request import PodRequest
from hami.scheduler.assumed_pods import AssumedPod, AssumedPods, Stage
from hami.scheduler.errors import RefusedError
from hami.scheduler.informers import WatchedCluster
from hami.scheduler.placer import Placer
from hami.scheduler.precedence import Precedence
from hami.scheduler.readiness import NotReadyError, Readiness
from hami.scheduler.refusals import Refusal
from hami.scheduler.unschedulable import UnschedulablePods
from hami.wire import errors, extender_api, objects


class Outcome(msgspec.Struct, frozen=True):
    """The answer, and its reasons for events, metrics, logs and traces."""

    answer: bytes
    #: None for simulations, and for pods that ask for none of our cards.
    pod: objects.Pod | None = None
    asked_nodes: int = 0
    assumed: AssumedPod | None = None
    #: Why that node; None if none fits.
    explanation: Explanation | None = None
    #: Why no node fits; None if one does.
    refusal: Refusal | None = None
    #: Whether only a nominated node was asked about.
    probe: bool = False


class Filter:
    def __init__(
        self,
        *,
        watched: WatchedCluster,
        placer: Placer,
        assumed_pods: AssumedPods,
        unschedulable: UnschedulablePods,
        precedence: Precedence,
        readiness: Readiness,
        budget: float,
        now: Callable[[], float],
    ) -> None:
        self._watched = watched
        self._placer = placer
        self._assumed_pods = assumed_pods
        self._unschedulable = unschedulable
        self._precedence = precedence
        self._readiness = readiness
        #: Seconds to wait for readiness, and for the result of an earlier bind.
        self._budget = budget
        self._now = now
        #: UID of the pod whose probe was refused last, if no other decision was made since.
        self._probed = ""

    async def filter(self, args: extender_api.Args) -> Outcome:
        """Answer a request; raises RefusedError or NotReadyError."""
        pod = args.pod
        if pod is None:
            raise RefusedError("extender args missing pod")
        try:
            wanted = self._placer.parse(pod)
        except errors.WireError as error:
            raise RefusedError(str(error), pod) from error
        if args.nodes is not None:
            await self._readiness.require(self._budget, leading=False)
            answer = simulate(self._watched.cluster, args, wanted)
            return Outcome(answer, asked_nodes=len(args.nodes))
        if args.node_names is None:
            raise RefusedError(
                "the request has neither NodeNames nor Nodes; set nodeCacheCapable: true for the "
                "extender in kube-scheduler's configuration"
            )
        if wanted is None:
            return Outcome(extender_api.encode_filter_result(node_names=args.node_names))
        if not pod.uid:
            raise RefusedError(
                f"pod {pod.namespace}/{pod.name} has no UID, so nothing can be reserved for it; "
                "send whole nodes (Nodes) to simulate"
            )
        await self._require_undecided(pod)
        return self._place(pod, wanted, args.node_names)

    async def _require_undecided(self, pod: objects.Pod) -> None:
        """Wait until this replica may decide about a pod; raise if there is nothing to decide."""
        await self._readiness.require(self._budget)
        assumed = await self._assumed_pods.settled(pod.uid, self._budget)
        if not self._readiness.ready:  # the lease was lost meanwhile, and maybe gained again
            raise NotReadyError(self._readiness.why_not())
        if assumed is not None and assumed.stage is Stage.ACCEPTED:
            raise RefusedError(
                f"pod {pod.namespace}/{pod.name} was bound to {assumed.node} a moment ago; "
                "nothing to do: kube-scheduler's own watch will show it"
            )
        info = self._watched.cluster.pods.get(pod.uid)
        if info is not None and info.hold is Hold.BOUND:
            raise RefusedError(
                f"pod {pod.namespace}/{pod.name} is bound to {info.node} already; to move it, "
                "delete it and create it again"
            )
        if self._watched.has_ended(pod.uid):
            raise RefusedError(
                f"pod {pod.namespace}/{pod.name} with UID {pod.uid} is deleted or finished; "
                "create a new one to have it scheduled"
            )

    def _place(self, pod: objects.Pod, wanted: PodRequest, names: Sequence[str]) -> Outcome:
        asked = self._watched.cluster.ask(names)
        probed, self._probed = self._probed, ""
        with self._precedence.before(pod.priority) as kept:
            decision = self._placer.decide_or_repeat(wanted, asked, len(names))
        if isinstance(decision, Refusal):
            if probed != pod.uid and list(names) == [pod.nominated_node]:
                self._probed = pod.uid
            return self._refuse(pod, wanted, asked, _with_kept(decision, kept), len(names))
        assert decision.winner is not None
        refused = self._unschedulable.forget(wanted.uid)
        explained = refused is not None and refused.written is not None
        assumed = self._placer.assume(pod, wanted, decision.winner, explained=explained)
        self._precedence.placed(wanted.uid, pod.priority, assumed.node)
        if refused is not None:
            self._watched.room(assumed.node, "")  # there may be more, for other unschedulable pods
        answer = extender_api.encode_filter_result(node_names=[assumed.node])
        return Outcome(answer, pod, len(names), assumed, decision.explanation)

    def _refuse(
        self,
        pod: objects.Pod,
        wanted: PodRequest,
        asked: Asked,
        refusal: Refusal,
        asked_nodes: int,
    ) -> Outcome:
        probe = self._probed == pod.uid
        self._assumed_pods.release(wanted.uid)
        if not probe:
            at = dt.datetime.fromtimestamp(int(self._now()), dt.UTC)
            note = msgspec.structs.replace(refusal.note, at=at.isoformat().replace("+00:00", "Z"))
            self._precedence.refused(self._unschedulable.refuse(pod, wanted, note, asked))
        return Outcome(refusal.answer, pod, asked_nodes, refusal=refusal, probe=probe)


def _with_kept(refusal: Refusal, kept: int) -> Refusal:
    """Add to a refusal that some cards are kept for more important pods."""
    if not kept:
        return refusal
    note = f"cards are kept for {kept} more important pods for a few seconds"
    return msgspec.structs.replace(
        refusal, summary=f"{refusal.summary}; {note}", message=f"{refusal.message}; {note}"
    )


def simulate(cluster: Cluster, args: extender_api.Args, wanted: PodRequest | None) -> bytes:
    """Answer with the best node, as the very object that was sent."""
    assert args.nodes is not None
    assert args.raw_nodes is not None
    if wanted is None:
        return extender_api.encode_filter_result(
            nodes=args.raw_nodes, failed=args.bad_nodes or None
        )
    simulated = Cluster(cluster.vendors.values())
    for quota in cluster.quotas.all_limits().values():
        simulated.apply(state.PutQuota(quota))
    for (namespace, vendor), (memory, cores) in cluster.quotas.all_used().items():
        simulated.quotas.add_use(namespace, vendor, memory=memory, cores=cores)
    for node in args.nodes:
        simulated.observe_node(node)
    placed = {
        info.uid: info
        for node in args.nodes
        for info in cluster.pods_on(node.name)
        if info.uid != wanted.uid
    }
    for info in placed.values():
        simulated.apply(state.PutPod(info))
    # Use is counted above for all; the placed pods have just been counted a second time, and what
    # the pod itself holds anywhere does not count against it.
    own = cluster.pods.get(wanted.uid)
    for info in (*placed.values(), *((own,) if own is not None else ())):
        for vendor, memory, cores in info.quota_use():
            simulated.quotas.add_use(info.namespace, vendor, memory=-memory, cores=-cores)
    decision = decide.decide(simulated, wanted, [node.name for node in args.nodes])
    failed = decision.explanation.failed_nodes() | args.bad_nodes
    if decision.winner is None:
        return extender_api.encode_filter_result(nodes=(), failed=failed)
    names = [node.name for node in args.nodes]
    best = args.raw_nodes[names.index(decision.winner.node)]
    return extender_api.encode_filter_result(nodes=(best,), failed=failed or None)
