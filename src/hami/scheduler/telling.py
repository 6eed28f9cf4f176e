"""Events on pods, in HAMi's words: reasons and message forms that users and tools know."""

from __future__ import annotations

from hami.kube.events import EventRecorder
from hami.placement.explanation import Explanation
from hami.scheduler.filtering import Outcome
from hami.wire import extender_api, objects

#: Names per reason in a message; the rest is a number.
NAMED = 5


class Teller:
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

    def bypassed(self, pod: objects.Pod, message: str) -> None:
        self._tell(pod, "Warning", "AdmissionBypassed", message)

    def _tell(self, pod: objects.Pod, kind: str, reason: str, message: str) -> None:
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
