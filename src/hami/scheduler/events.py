"""Events on pods, in HAMi's words; pods that bypassed admission.

Events on pods, in HAMi's words: reasons and message forms that users and tools know.

Pods that got onto a node with a request for cards, but past admission and past us.
The webhook may have been down with failurePolicy Ignore, the pod labelled to be ignored, or its
scheduler another one. Nobody chose cards for such a pod. The node agent will not start it, and
until somebody notices, it waits there: so it is counted, and told on the pod.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from hami.kube.events import EventRecorder
from hami.placement.explanation import Explanation
from hami.scheduler.filter import Outcome
from hami.scheduler.informers import WatchedPod, World
from hami.wire import extender_api, objects

#: Names per reason in a message; the rest is a number.
NAMED = 5


class PodEvents:
    def __init__(self, recorder: EventRecorder) -> None:
        self._recorder = recorder

    def filtering_failed(self, pod: objects.Pod, message: str) -> None:
        self._tell(pod, "Warning", "FilteringFailed", message)

    def filtering_succeeded(self, pod: objects.Pod, explanation: Explanation) -> None:
        winner, score = explanation.winner, explanation.score or 0.0
        fitting = explanation.fitting
        asked = sum(int(finding.asked.sum()) for finding in explanation.findings)
        not_fitting = asked - fitting + len(explanation.unknown)
        message = (
            f"find fit node({winner}), {not_fitting} nodes not fit, "
            f"{fitting} nodes fit({winner}:{score:.2f}{',…' if fitting > 1 else ''})"
        )
        self._tell(pod, "Normal", "FilteringSucceed", message)

    def binding_failed(self, args: extender_api.BindingArgs, message: str) -> None:
        self._tell_of(args, "Warning", "BindingFailed", message)

    def binding_succeeded(self, args: extender_api.BindingArgs) -> None:
        key = f"{args.pod_namespace}/{args.pod_name}"
        message = f"Successfully binding node [{args.node}] to {key}"
        self._tell_of(args, "Normal", "BindingSucceed", message)

    def bypassed(self, pod: WatchedPod, message: str) -> None:
        self._tell(pod, "Warning", "AdmissionBypassed", message)

    def _tell(self, pod: objects.Pod | WatchedPod, kind: str, reason: str, message: str) -> None:
        self._recorder.record(
            namespace=pod.namespace,
            name=pod.name,
            uid=pod.uid,
            type=kind,
            reason=reason,
            message=message,
        )

    def _tell_of(
        self, args: extender_api.BindingArgs, kind: str, reason: str, message: str
    ) -> None:
        self._recorder.record(
            namespace=args.pod_namespace,
            name=args.pod_name,
            uid=args.pod_uid,
            type=kind,
            reason=reason,
            message=message,
        )


def no_node(outcome: Outcome) -> str:
    """Say why no node fits: each reason with its number of nodes, and some of their names."""
    names: dict[str, list[str]] = {}
    for group in outcome.groups:
        for reason in group.reasons:
            known = names.setdefault(reason, [])
            known.extend(sorted(group.names)[:NAMED] if len(known) < NAMED else ())
    told = []
    for reason, (nodes, _) in outcome.counts.items():
        named = sorted(names[reason])[:NAMED]
        more = f",… {nodes - len(named)} more" if nodes > len(named) else ""
        told.append(f"{nodes} nodes {reason}({','.join(named)}{more})")
    head = f"no available node, {outcome.asked_nodes} nodes do not meet"
    return "; ".join([head, *told])


_log = logging.getLogger(__name__)


class Bypassed:
    def __init__(
        self,
        world: World,
        teller: PodEvents,
        *,
        leads: Callable[[], bool],
        scheduler_name: str,
    ) -> None:
        self._teller = teller
        self._leads = leads
        self._scheduler_name = scheduler_name
        self._uids: set[str] = set()
        world.pods.add_handler(self._on_pod)

    def __len__(self) -> int:
        return len(self._uids)

    def _on_pod(self, old: WatchedPod | None, pod: WatchedPod | None) -> None:
        if pod is None or pod.bypassed is None:
            if old is not None:
                self._uids.discard(old.uid)
            return
        if pod.uid in self._uids:
            return
        self._uids.add(pod.uid)
        # Every replica sees it; one is enough to tell.
        if not self._leads():
            return
        resource, named = pod.bypassed
        message = (
            f"bound to {pod.node} without a card: it asks for {resource}, but "
            f"was placed by schedulerName {named} and not by {self._scheduler_name}. Delete it and "
            "create it again where admission sees it: no label hami.io/webhook=ignore, no "
            "schedulerName of its own, and the webhook up"
        )
        extra = {"pod": f"{pod.namespace}/{pod.name}", "node": pod.node, "scheduler": named}
        _log.warning("a pod got past admission", extra=extra)
        self._teller.bypassed(pod, message)
