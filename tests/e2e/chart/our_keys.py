"""Owners of annotations, by the product's own names; each new key is listed here."""

from __future__ import annotations

from hami.admission import checks
from hami.serving import tracing
from hami.vendors import table
from hami.wire import annotation_keys
from tests.e2e.install.nodes import KEYS

#: Vendors that the chart serves by default.
VENDORS = table.switched_on(table.built_in(), ())
OTHERS = tuple(vendor for vendor in VENDORS if vendor.section != "nvidia")

OURS_ON_PODS = set(checks.protected_annotations(VENDORS))
OF_THE_AGENT_ON_PODS = {
    annotation_keys.BIND_PHASE,
    annotation_keys.MIG_ALLOCATIONS,
    annotation_keys.OVERUSE,
    annotation_keys.RESIZED,
    annotation_keys.START_REFUSED,
    KEYS.to_allocate,
}
#: What the agent only writes back: it sets them, and never removes them.
RESTORED_BY_THE_AGENT_ON_PODS = {
    annotation_keys.ASSIGNED_NODE,
    annotation_keys.GRANT_MAC,
    *table.device_lists(VENDORS),
}
#: What comes with a pod from its user, or from our webhook, which writes in the user's name.
OF_USERS_ON_PODS = {
    annotation_keys.FALLBACK,
    annotation_keys.NODE_POLICY,
    annotation_keys.GPU_POLICY,
    annotation_keys.SCORING_WEIGHTS,
    tracing.ANNOTATION,
    *(KEYS.use_type, KEYS.nouse_type, KEYS.use_uuid, KEYS.nouse_uuid, KEYS.mode, KEYS.numa_bind),
}

OF_THE_SCHEDULER_ON_NODES = {
    KEYS.handshake,
    annotation_keys.NODE_LOCK,
    annotation_keys.REQUEUE,
    *(vendor.annotations.lock_owner for vendor in VENDORS if vendor.annotations.lock_owner),
}
OF_THE_AGENT_ON_NODES = {
    KEYS.handshake,
    KEYS.register,
    KEYS.pair_scores,
    KEYS.binding,
    KEYS.lock_reason,
    KEYS.closed,
    annotation_keys.NODE_GRANT_FORMS,
    annotation_keys.NODE_LOCK,
}
OURS_ON_NODES = OF_THE_SCHEDULER_ON_NODES | OF_THE_AGENT_ON_NODES
