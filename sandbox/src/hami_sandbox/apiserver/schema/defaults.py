"""Defaults of every kind but pods."""

from __future__ import annotations

import base64
import datetime as dt
import hashlib
from collections.abc import Callable

from hami_sandbox.apiserver.kinds import Kind
from hami_sandbox.apiserver.refusals import Object
from hami_sandbox.apiserver.schema import pod_defaults

_RBAC = "rbac.authorization.k8s.io"
_JOB_UID, _JOB_NAME = "batch.kubernetes.io/controller-uid", "batch.kubernetes.io/job-name"
_QUARTER = "25%"


def apply_defaults(kind: Kind, obj: Object, *, now: dt.datetime) -> None:  # noqa: ARG001 - a default may tell the time
    """Fill in the defaults of the kind (of pod templates too), in place; at every write."""
    fill = _DEFAULTS.get((kind.group, kind.kind))
    if fill:
        fill(obj)


def admit_pod(pod: Object, *, priority_class: Object | None = None) -> None:
    """Do what the built-in admission does to a new pod (account, priority, tolerations)."""
    pod_defaults.admit(pod, priority_class)


def prepare_create(kind: Kind, obj: Object, *, now: dt.datetime) -> None:  # noqa: ARG001 - see apply_defaults
    """Set what a new object has whatever its writer says; after mutating admission, uid is set."""
    if kind.has_status and kind.kind != "Node":  # a kubelet brings its node's status along
        obj["status"] = {}
    prepare = _PREPARE.get((kind.group, kind.kind))
    if prepare:
        prepare(obj)


def _pod(obj: Object) -> None:
    pod_defaults.pod_spec(obj.setdefault("spec", {}), template=False)


def _template(spec: Object) -> None:
    template = spec.setdefault("template", {})
    template.setdefault("metadata", {})
    pod_defaults.pod_spec(template.setdefault("spec", {}), template=True)


def _rolling(strategy: Object, unavailable: object, surge: object) -> None:
    strategy.setdefault("type", "RollingUpdate")
    if strategy["type"] == "RollingUpdate":
        rolling = strategy.setdefault("rollingUpdate", {})
        rolling.setdefault("maxUnavailable", unavailable)
        rolling.setdefault("maxSurge", surge)


def _deployment(obj: Object) -> None:
    spec = obj.setdefault("spec", {})
    spec.setdefault("replicas", 1)
    _rolling(spec.setdefault("strategy", {}), _QUARTER, _QUARTER)
    spec.setdefault("revisionHistoryLimit", 10)
    spec.setdefault("progressDeadlineSeconds", 600)
    _template(spec)


def _replica_set(obj: Object) -> None:
    spec = obj.setdefault("spec", {})
    spec.setdefault("replicas", 1)
    _template(spec)


def _daemon_set(obj: Object) -> None:
    spec = obj.setdefault("spec", {})
    _rolling(spec.setdefault("updateStrategy", {}), 1, 0)
    spec.setdefault("revisionHistoryLimit", 10)
    _template(spec)


def _job(obj: Object) -> None:
    spec = obj.setdefault("spec", {})
    if "completions" not in spec and "parallelism" not in spec:
        spec["completions"] = 1
    spec.setdefault("parallelism", 1)
    if "backoffLimitPerIndex" not in spec:
        spec.setdefault("backoffLimit", 6)
    spec.setdefault("completionMode", "NonIndexed")
    spec.setdefault("suspend", False)
    spec.setdefault("manualSelector", False)
    policy = "Failed" if "podFailurePolicy" in spec else "TerminatingOrFailed"
    spec.setdefault("podReplacementPolicy", policy)
    _template(spec)


def _secret(obj: Object) -> None:
    obj.setdefault("type", "Opaque")
    for name, text in (obj.pop("stringData", None) or {}).items():
        obj.setdefault("data", {})[name] = base64.b64encode(text.encode()).decode()


def _service(obj: Object) -> None:
    spec = obj.setdefault("spec", {})
    spec.setdefault("type", "ClusterIP")
    spec.setdefault("sessionAffinity", "None")
    for port in spec.get("ports") or ():
        port.setdefault("protocol", "TCP")
        if "port" in port:
            port.setdefault("targetPort", port["port"])
    if spec["type"] != "ExternalName":
        spec.setdefault("internalTrafficPolicy", "Cluster")
    if spec["type"] in {"NodePort", "LoadBalancer"}:
        spec.setdefault("externalTrafficPolicy", "Cluster")


def _webhooks(obj: Object) -> None:
    for hook in obj.get("webhooks") or ():
        hook.setdefault("failurePolicy", "Fail")
        hook.setdefault("matchPolicy", "Equivalent")
        hook.setdefault("namespaceSelector", {})
        hook.setdefault("objectSelector", {})
        hook.setdefault("timeoutSeconds", 10)
        for rule in hook.get("rules") or ():
            rule.setdefault("scope", "*")
        if "service" in hook.get("clientConfig", {}):
            hook["clientConfig"]["service"].setdefault("port", 443)
        if obj["kind"] == "MutatingWebhookConfiguration":
            hook.setdefault("reinvocationPolicy", "Never")


def _role_binding(obj: Object) -> None:
    obj.setdefault("roleRef", {}).setdefault("apiGroup", _RBAC)
    for subject in obj.get("subjects") or ():
        if subject.get("kind") in {"User", "Group"}:
            subject.setdefault("apiGroup", _RBAC)


def _priority_class(obj: Object) -> None:
    obj.setdefault("preemptionPolicy", "PreemptLowerPriority")


def _new_priority_class(obj: Object) -> None:
    """Set generation 1; it never changes, because the value is immutable."""
    obj["metadata"]["generation"] = 1


def _node(obj: Object) -> None:
    status = obj.setdefault("status", {})
    if "capacity" in status and "allocatable" not in status:
        status["allocatable"] = dict(status["capacity"])


def _namespace(obj: Object) -> None:
    metadata = obj["metadata"]
    if metadata.get("name"):
        metadata.setdefault("labels", {})["kubernetes.io/metadata.name"] = metadata["name"]


def _new_pod(obj: Object) -> None:
    obj["status"] = {"phase": "Pending", "qosClass": pod_defaults.quality(obj)}


def _new_namespace(obj: Object) -> None:
    _namespace(obj)
    finalizers = obj.setdefault("spec", {}).setdefault("finalizers", [])
    if "kubernetes" not in finalizers:
        finalizers.append("kubernetes")
    obj["status"] = {"phase": "Active"}


def _new_service(obj: Object) -> None:
    obj["status"] = {"loadBalancer": {}}
    spec = obj["spec"]
    if spec["type"] == "ExternalName":
        return
    if not spec.get("clusterIP"):
        spec["clusterIP"] = _cluster_address(obj["metadata"]["uid"])
    spec["clusterIPs"] = [spec["clusterIP"]]
    spec.setdefault("ipFamilies", ["IPv4"])
    spec.setdefault("ipFamilyPolicy", "SingleStack")


def _cluster_address(uid: str) -> str:
    """Return an address out of the range of services; nothing listens there in a sandbox."""
    high, low = hashlib.sha256(uid.encode()).digest()[:2]
    return f"10.96.{high}.{max(2, min(low, 254))}"


def _new_job(obj: Object) -> None:
    spec, metadata = obj["spec"], obj["metadata"]
    if spec.get("manualSelector"):
        return
    labels = spec["template"]["metadata"].setdefault("labels", {})
    for name, value in ((_JOB_UID, metadata["uid"]), (_JOB_NAME, metadata.get("name", ""))):
        labels[name] = value
        labels[name.partition("/")[2]] = value
    spec["selector"] = {"matchLabels": {_JOB_UID: metadata["uid"]}}
    if not metadata.get("labels"):
        metadata["labels"] = dict(labels)


def _new_daemon_set(obj: Object) -> None:
    counts = ("currentNumberScheduled", "numberMisscheduled", "desiredNumberScheduled")
    obj["status"] = dict.fromkeys((*counts, "numberReady"), 0)


def _new_replica_set(obj: Object) -> None:
    obj["status"] = {"replicas": 0}


_Fill = Callable[[Object], None]
_ADMISSION = "admissionregistration.k8s.io"
_DEFAULTS: dict[tuple[str, str], _Fill] = {
    ("", "Pod"): _pod,
    ("", "Secret"): _secret,
    ("", "Service"): _service,
    ("", "Node"): _node,
    ("", "Namespace"): _namespace,
    ("apps", "Deployment"): _deployment,
    ("apps", "ReplicaSet"): _replica_set,
    ("apps", "DaemonSet"): _daemon_set,
    ("batch", "Job"): _job,
    (_ADMISSION, "MutatingWebhookConfiguration"): _webhooks,
    (_ADMISSION, "ValidatingWebhookConfiguration"): _webhooks,
    (_RBAC, "RoleBinding"): _role_binding,
    (_RBAC, "ClusterRoleBinding"): _role_binding,
    ("scheduling.k8s.io", "PriorityClass"): _priority_class,
}
_PREPARE: dict[tuple[str, str], _Fill] = {
    ("", "Pod"): _new_pod,
    ("", "Namespace"): _new_namespace,
    ("", "Service"): _new_service,
    ("apps", "ReplicaSet"): _new_replica_set,
    ("apps", "DaemonSet"): _new_daemon_set,
    ("batch", "Job"): _new_job,
    ("scheduling.k8s.io", "PriorityClass"): _new_priority_class,
}
