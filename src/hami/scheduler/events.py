"""Events on pods, in HAMi's words; pods that bypassed admission.

Reasons and message forms are those that HAMi's users and tools know.

A pod bypasses admission if the webhook was down with failurePolicy Ignore, if the pod is labelled
to be ignored, or if another scheduler placed it. It asks for cards, was bound to a node and has no
cards: the node agent will not start it. So such pods are counted, and each gets an event.
"""

from __future__ import annotations

import abc
import logging

from hami.kube.events import EventRecorder
from hami.placement.explanation import Explanation
from hami.scheduler.informers import WatchedCluster
from hami.scheduler.leadership import Leadership
from hami.scheduler.watched import WatchedPod
from hami.wire import extender_api, objects

_log = logging.getLogger(__name__)


class PodEvents:
    """Record what became of a pod; `kubectl describe pod` shows it."""

    def __init__(self, recorder: EventRecorder) -> None:
        self._recorder = recorder

    def filtering_failed(self, pod: objects.Pod, message: str) -> None:
        self._record(pod, "Warning", "FilteringFailed", message)

    def filtering_succeeded(self, pod: objects.Pod, explanation: Explanation) -> None:
        winner, score = explanation.winner, explanation.score or 0.0
        fitting = explanation.fitting
        asked = sum(int(finding.asked.sum()) for finding in explanation.findings)
        not_fitting = asked - fitting + len(explanation.unknown)
        message = (
            f"find fit node({winner}), {not_fitting} nodes not fit, "
            f"{fitting} nodes fit({winner}:{score:.2f}{',…' if fitting > 1 else ''})"
        )
        self._record(pod, "Normal", "FilteringSucceed", message)

    def binding_failed(self, args: extender_api.BindingArgs, message: str) -> None:
        self._record_bind(args, "Warning", "BindingFailed", message)

    def binding_succeeded(self, args: extender_api.BindingArgs) -> None:
        message = f"Successfully binding node [{args.node}] to {args.key}"
        self._record_bind(args, "Normal", "BindingSucceed", message)

    def bypassed(self, pod: WatchedPod, message: str) -> None:
        self._record(pod, "Warning", "AdmissionBypassed", message)

    def grant_invalid(self, pod: WatchedPod, message: str) -> None:
        self._record(pod, "Warning", "GrantInvalid", message)

    def evicted(self, pod: WatchedPod, message: str) -> None:
        self._record(pod, "Warning", "GPUPodEvicted", message)

    def eviction_blocked(self, pod: WatchedPod, message: str) -> None:
        self._record(pod, "Warning", "GPUPodEvictionBlocked", message)

    def _record(self, pod: objects.Pod | WatchedPod, kind: str, reason: str, message: str) -> None:
        self._recorder.record(
            namespace=pod.namespace,
            name=pod.name,
            uid=pod.uid,
            type=kind,
            reason=reason,
            message=message,
        )

    def _record_bind(
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


class ReportedPods(abc.ABC):
    """Pods that something is wrong with; the leader reports each once.

    Also those that it has seen before it led: after a start all pods are read before the lease is.
    """

    def __init__(
        self,
        watched: WatchedCluster,
        pod_events: PodEvents,
        leadership: Leadership,
        *,
        scheduler_name: str,
    ) -> None:
        self._pod_events = pod_events
        self._leadership = leadership
        self._scheduler_name = scheduler_name
        self._uids: set[str] = set()
        #: By UID, those that were seen while another replica led.
        self._unreported: dict[str, WatchedPod] = {}
        watched.pods.add_handler(self._on_pod)
        leadership.add_handler(self._leadership_changed)

    def __len__(self) -> int:
        return len(self._uids)

    @abc.abstractmethod
    def _concerns(self, pod: WatchedPod) -> bool:
        """Return whether something is wrong with a pod."""

    @abc.abstractmethod
    def _report(self, pod: WatchedPod) -> None:
        """Report it to the pod's owner."""

    def _on_pod(self, old: WatchedPod | None, pod: WatchedPod | None) -> None:
        if pod is None or not self._concerns(pod):
            if old is not None:
                self._uids.discard(old.uid)
                self._unreported.pop(old.uid, None)
            return
        if pod.uid in self._uids:
            return
        self._uids.add(pod.uid)
        # Every replica sees it; one event is enough.
        if self._leadership.leading:
            self._report(pod)
        else:
            self._unreported[pod.uid] = pod

    def _leadership_changed(self, leading: bool) -> None:  # noqa: FBT001  a handler's only value
        if leading:
            unreported, self._unreported = self._unreported, {}
            for pod in unreported.values():
                self._report(pod)


class BypassedPods(ReportedPods):
    """Bound pods that ask for cards and were given none."""

    def _concerns(self, pod: WatchedPod) -> bool:
        # A pod that names our scheduler has lost its grant: `UnprovenPods` reports it.
        return pod.bypassed is not None and pod.bypassed[1] != self._scheduler_name

    def _report(self, pod: WatchedPod) -> None:
        assert pod.bypassed is not None
        resource, named = pod.bypassed
        message = (
            f"bound to {pod.node} without a card: it asks for {resource}, but "
            f"was placed by schedulerName {named} and not by {self._scheduler_name}. Delete it and "
            "create it again so that admission sees it: without the label hami.io/webhook=ignore, "
            "without a schedulerName of its own, and while the webhook runs"
        )
        extra = {"pod": f"{pod.namespace}/{pod.name}", "node": pod.node, "scheduler": named}
        _log.warning("pod bypassed admission", extra=extra)
        self._pod_events.bypassed(pod, message)
