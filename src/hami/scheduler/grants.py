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
from collections.abc import Collection, Iterable

from hami.scheduler.events import ReportedPods
from hami.scheduler.settings import Settings
from hami.scheduler.watched import WatchedPod
from hami.serving.grant_keys import KeyFolder
from hami.vendors import table
from hami.vendors.table import Vendor
from hami.wire import annotation_keys, grant, objects, text_values

_log = logging.getLogger(__name__)


class GrantVerifier:
    """Verifies the device lists of a bound pod with the keys of the cluster."""

    def __init__(self, keys: KeyFolder, *, signed: Collection[str], allow_unsigned: bool) -> None:
        self._folder = keys
        self._keys = keys.keys()
        #: The annotations of device lists.
        self._signed = signed
        #: Whether HAMi's scheduler may have placed a pod. It signs nothing.
        self._allow_unsigned = allow_unsigned

    def __call__(self, pod: objects.Pod, order: grant.Resize | None = None) -> bool:
        """Return whether our scheduler made the pod's grant, or this order, for pod and node."""
        key = annotation_keys.GRANT_MAC if order is None else annotation_keys.RESIZE_MAC
        mac = pod.annotation(key)
        if not mac:
            return order is None and (self._allow_unsigned or not self._signs(pod))
        if self._verify(pod, mac, order):
            return True
        # Files are looked at only now: they may have changed, but seldom have.
        known, self._keys = self._keys, self._folder.keys()
        return self._keys != known and self._verify(pod, mac, order)

    def _signs(self, pod: objects.Pod) -> bool:
        """Return whether we sign such a pod: keys of form v1 are for NVIDIA's list alone."""
        return bool(self._keys.signing or pod.annotation(annotation_keys.SIGNED_DEVICES))

    def _verify(self, pod: objects.Pod, mac: str, order: grant.Resize | None) -> bool:
        signed = order or grant.of_pod(pod, pod.node_name, self._signed)
        return self._keys.verify(mac, signed)


def key_folder(settings: Settings) -> KeyFolder | None:
    """Return the keys of grants; None: they are neither signed nor verified."""
    if not settings.grant_key_dir:
        return None
    forms = text_values.comma_list(settings.accept_grant_forms)
    return KeyFolder(settings.grant_key_dir, forms=forms)


def verifier(
    keys: KeyFolder | None, vendors: Iterable[Vendor], settings: Settings
) -> GrantVerifier | None:
    """Return what verifies grants; None without keys: grants are taken as they are."""
    if keys is None:
        return None
    signed = table.device_lists(vendors)
    return GrantVerifier(keys, signed=signed, allow_unsigned=settings.allow_unsigned_grants)


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
