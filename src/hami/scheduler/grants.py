"""Grants of bound pods: verified when they are read, reported where not valid.

Every account that may patch pods can rewrite annotations. A running scheduler keeps the grant that
it saw first, but one that starts reads what is there now. So a grant counts as the truth only with
our signature (docs/designs/002-grants.md); a pod without one counts with what it asks for
(`hami.cluster.unproven`), is counted in a metric and gets an event.

While HAMi's scheduler still places pods, `--allow-unsigned-grants` takes its grants, which have no
signature, as they are, and does not report them.
"""

from __future__ import annotations

import logging

from hami.scheduler.events import ReportedPods
from hami.scheduler.informers import WatchedPod
from hami.serving.grant_keys import KeyFolder
from hami.wire import annotation_keys, objects, signature

_log = logging.getLogger(__name__)


class GrantVerifier:
    """Verifies the device list of a bound pod with the keys of the cluster."""

    def __init__(self, keys: KeyFolder, *, allow_unsigned: bool) -> None:
        self._folder = keys
        self._keys = keys.keys()
        #: Whether HAMi's scheduler may have placed a pod. It signs nothing.
        self._allow_unsigned = allow_unsigned

    def __call__(self, pod: objects.Pod) -> bool:
        """Return whether our scheduler made the pod's grant for this pod and node."""
        mac = pod.annotation(annotation_keys.GRANT_MAC)
        if not mac:
            return self._allow_unsigned
        if self._verify(pod, mac):
            return True
        # Files are looked at only now: they may have changed, but seldom have.
        known, self._keys = self._keys, self._folder.keys()
        return self._keys != known and self._verify(pod, mac)

    def _verify(self, pod: objects.Pod, mac: str) -> bool:
        return signature.verify(
            self._keys,
            mac,
            uid=pod.uid,
            node=pod.node_name,
            devices=pod.annotation(annotation_keys.SIGNED_DEVICES),
        )


def verifier(keys: KeyFolder | None, *, allow_unsigned: bool) -> GrantVerifier | None:
    """Return what verifies grants; None without keys: grants are taken as they are."""
    return None if keys is None else GrantVerifier(keys, allow_unsigned=allow_unsigned)


class UnprovenPods(ReportedPods):
    """Bound pods whose grant is missing or not valid.

    Those that another scheduler placed without a grant are reported as bypassed instead.
    """

    def _concerns(self, pod: WatchedPod) -> bool:
        placed_by_others = pod.bypassed is not None and pod.bypassed[1] != self._scheduler_name
        return bool(pod.unproven) and not placed_by_others

    def _report(self, pod: WatchedPod) -> None:
        extra = {"pod": f"{pod.namespace}/{pod.name}", "node": pod.node, "why": pod.unproven}
        _log.warning("pod without a valid grant", extra=extra)
        self._pod_events.grant_invalid(
            pod,
            f"{pod.unproven}. It counts on {pod.node} with what it asks for, and at least with "
            "what its annotation says. The node's agent writes the annotations back if it has "
            "started the pod; otherwise delete the pod to reschedule it. Find the account that "
            "writes hami.io annotations; the chart's admissionPolicy keeps others from it",
        )
