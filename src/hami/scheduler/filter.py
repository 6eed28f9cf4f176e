"""/filter: choose a node for a pod, or answer a simulation.

Requests with whole nodes, which ask whether a pod would fit on one of them.
Autoscalers ask so, with nodes that exist and with templates of nodes that could. What is placed on
a node of which we know the name counts, whatever the caller knows; templates are empty. Nothing is
booked and nobody is told.

/filter: where a pod goes, or why nowhere.
The answer to kube-scheduler names one node, and the pod's cards there are booked before it is
sent: the next pod is decided while this one is on its way to /bind. Nothing is written to the API
server. Requests with whole nodes come from simulators (`hami.scheduler.filter`) and book
nothing.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Sequence

import msgspec

from hami.cluster import state
from hami.cluster.pod_info import Allocation
from hami.cluster.state import Cluster
from hami.placement import decide, explanation, request
from hami.placement.explanation import Explanation, Group
from hami.placement.request import PodRequest
from hami.scheduler.assumed_pods import AssumedPod, AssumedPods, Stage
from hami.scheduler.bind import Binder
from hami.scheduler.errors import RefusedError
from hami.scheduler.informers import World
from hami.scheduler.readiness import Readiness
from hami.scheduler.unschedulable import UnschedulablePods, carried, note_of
from hami.wire import errors, extender_api, objects


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
    for (namespace, word), (memory, cores) in cluster.quotas.all_used().items():
        simulated.quotas.add_use(namespace, word, memory=memory, cores=cores)
    for node in args.nodes:
        simulated.observe_node(node)
    placed = {
        row.uid: row
        for node in args.nodes
        for row in cluster.rows_on(node.name)
        if row.uid != wanted.uid
    }
    for row in placed.values():
        simulated.apply(state.PutPod(row))
    # Use is counted above for all; what is placed here has just been counted again, and what the
    # pod itself holds anywhere does not count against it.
    own = cluster.rows.get(wanted.uid)
    for row in (*placed.values(), *((own,) if own is not None else ())):
        for word, memory, cores in row.quota_use():
            simulated.quotas.add_use(row.namespace, word, memory=-memory, cores=-cores)
    decision = decide.decide(simulated, wanted, [node.name for node in args.nodes])
    failed = decision.explanation.failed_nodes() | args.bad_nodes
    if decision.winner is None:
        return extender_api.encode_filter_result(nodes=(), failed=failed)
    names = [node.name for node in args.nodes]
    best = args.raw_nodes[names.index(decision.winner.node)]
    return extender_api.encode_filter_result(nodes=(best,), failed=failed or None)


class Outcome(msgspec.Struct, frozen=True):
    """What was answered, for events, metrics, logs and traces."""

    answer: bytes
    #: None where the request was not understood, or asks for none of our cards.
    pod: objects.Pod | None = None
    asked_nodes: int = 0
    booking: AssumedPod | None = None
    explanation: Explanation | None = None
    #: Why no node fits: the refused nodes, and by reason how many nodes and cards.
    groups: tuple[Group, ...] = ()
    counts: dict[str, tuple[int, int]] = {}


class Filter:
    def __init__(
        self,
        *,
        world: World,
        bookings: AssumedPods,
        waiting: UnschedulablePods,
        binder: Binder,
        readiness: Readiness,
        defaults: request.Defaults,
        budget: float,
        now: Callable[[], float],
    ) -> None:
        self._world = world
        self._bookings = bookings
        self._waiting = waiting
        self._binder = binder
        self._readiness = readiness
        self._defaults = defaults
        self._budget = budget
        self._now = now

    async def filter(self, args: extender_api.Args) -> Outcome:
        """Answer a request; raises RefusedError or NotReadyError."""
        pod = args.pod
        if pod is None:
            raise RefusedError("extender args missing pod")
        try:
            wanted = request.parse(pod, tuple(self._world.cluster.vendors.values()), self._defaults)
        except errors.WireError as error:
            raise RefusedError(str(error), pod) from error
        if args.nodes is not None:
            await self._readiness.require(self._budget, leading=False)
            answer = simulate(self._world.cluster, args, wanted)
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
        await self._may_decide(pod)
        return self._decide(pod, wanted, args.node_names)

    async def _may_decide(self, pod: objects.Pod) -> None:
        await self._readiness.require(self._budget)
        booking = self._bookings.get(pod.uid)
        if booking is not None and booking.stage in (Stage.BINDING, Stage.UNKNOWN):
            await self._binder.settled(booking, self._budget)
            booking = self._bookings.get(pod.uid)
        if booking is not None and booking.stage is Stage.ACCEPTED:
            raise RefusedError(f"pod {pod.namespace}/{pod.name} was bound to {booking.node}")
        row = self._world.cluster.rows.get(pod.uid)
        if row is not None and row.hold is Allocation.BOUND:
            raise RefusedError(f"pod {pod.namespace}/{pod.name} is bound to {row.node} already")
        if self._world.has_ended(pod.uid):
            raise RefusedError(f"pod {pod.namespace}/{pod.name} with UID {pod.uid} is gone")

    def _decide(
        self, pod: objects.Pod, wanted: request.PodRequest, names: Sequence[str]
    ) -> Outcome:
        decision = decide.decide(self._world.cluster, wanted, names)
        told = decision.explanation
        if decision.winner is None:
            groups = tuple(told.groups())
            counts = explanation.count_reasons(groups)
            self._bookings.give_up(wanted.uid)
            at = dt.datetime.fromtimestamp(int(self._now()), dt.UTC)
            note = note_of(told, counts, at=at.isoformat().replace("+00:00", "Z"))
            self._waiting.refuse(pod, wanted, note)
            answer = extender_api.encode_refusal((group.names, group.text) for group in groups)
            return Outcome(answer, pod, len(names), explanation=told, groups=groups, counts=counts)
        waited = self._waiting.forget(wanted.uid)
        booking = self._bookings.hold(wanted, decision.winner)
        booking.group = pod.pod_group
        # By us, as we know, or by the leader before us, as the pod shows.
        explained = waited is not None and waited.written is not None
        booking.explained = explained or carried(pod) is not None
        if waited is not None:
            self._world.room(booking.node, "")  # there may be more, and others who wait
        answer = extender_api.encode_filter_result(node_names=[decision.winner.node])
        return Outcome(answer, pod, len(names), booking, told)
