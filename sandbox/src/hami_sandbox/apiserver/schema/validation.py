"""Whether an object may be stored, and the words for what is wrong with it."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from hami_sandbox.apiserver.kind import Kind
from hami_sandbox.apiserver.refusals import Object
from hami_sandbox.apiserver.schema import group_rules, kind_rules, metadata_rules
from hami_sandbox.apiserver.schema.causes import Cause

__all__ = ["Cause", "validate"]

_RBAC = "rbac.authorization.k8s.io"
_ADMISSION = "admissionregistration.k8s.io"
#: A new or changed object, and the one that it replaces.
_Rule = Callable[[Object, Object | None], Iterator[Cause]]
_RULES: dict[tuple[str, str], _Rule] = {
    ("", "Pod"): kind_rules.pod,
    ("", "Node"): kind_rules.node,
    ("", "ConfigMap"): kind_rules.config_map,
    ("", "Secret"): kind_rules.secret,
    ("", "Event"): kind_rules.event,
    ("events.k8s.io", "Event"): kind_rules.event,
    ("", "ResourceQuota"): kind_rules.quota,
    ("", "Service"): kind_rules.service,
    ("coordination.k8s.io", "Lease"): kind_rules.lease,
    ("apps", "Deployment"): group_rules.deployment,
    ("apps", "ReplicaSet"): group_rules.workload,
    ("apps", "DaemonSet"): group_rules.workload,
    ("batch", "Job"): group_rules.job,
    (_ADMISSION, "MutatingWebhookConfiguration"): group_rules.webhooks,
    (_ADMISSION, "ValidatingWebhookConfiguration"): group_rules.webhooks,
    (_RBAC, "Role"): group_rules.role,
    (_RBAC, "ClusterRole"): group_rules.role,
    (_RBAC, "RoleBinding"): group_rules.role_binding,
    (_RBAC, "ClusterRoleBinding"): group_rules.role_binding,
    ("scheduling.k8s.io", "PriorityClass"): group_rules.priority_class,
    ("policy", "PodDisruptionBudget"): group_rules.budget,
    ("node.k8s.io", "RuntimeClass"): group_rules.runtime_class,
}


def validate(
    kind: Kind, obj: Object, old: Object | None = None, *, subresource: str = ""
) -> list[Cause]:
    """Return all that is wrong with an object; `old` is what it replaces."""
    before = old["metadata"] if old is not None else None
    found = list(metadata_rules.check(kind, obj["metadata"], before))
    rule = _RULES.get((kind.group, kind.kind))
    # A write to a subresource takes the spec as it was; only a node's status has rules here.
    if rule and (not subresource or kind.kind in {"Node", "ResourceQuota"}):
        found += rule(obj, old)
    return found
