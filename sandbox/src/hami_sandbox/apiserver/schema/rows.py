"""Columns and rows of kubectl's tables, by kind."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from typing import Any

import msgspec

from hami_sandbox.apiserver.refusals import Object
from hami_sandbox.apiserver.schema import pod_rows
from hami_sandbox.apiserver.schema.pod_rows import NONE, UNKNOWN, age, duration, joined, selector


def deployment(obj: Object, now: dt.datetime) -> list[Any]:
    spec, status = obj.get("spec") or {}, obj.get("status") or {}
    return [
        obj["metadata"]["name"],
        f"{status.get('readyReplicas', 0)}/{spec.get('replicas', 0)}",
        status.get("updatedReplicas", 0),
        status.get("availableReplicas", 0),
        age(obj["metadata"].get("creationTimestamp"), now),
        *_template(spec),
    ]


def replica_set(obj: Object, now: dt.datetime) -> list[Any]:
    spec, status = obj.get("spec") or {}, obj.get("status") or {}
    return [
        obj["metadata"]["name"],
        spec.get("replicas", 0),
        status.get("replicas", 0),
        status.get("readyReplicas", 0),
        age(obj["metadata"].get("creationTimestamp"), now),
        *_template(spec),
    ]


def daemon_set(obj: Object, now: dt.datetime) -> list[Any]:
    spec, status = obj.get("spec") or {}, obj.get("status") or {}
    pod = (spec.get("template") or {}).get("spec") or {}
    counts = ("desiredNumberScheduled", "currentNumberScheduled", "numberReady")
    return [
        obj["metadata"]["name"],
        *(status.get(each, 0) for each in counts),
        status.get("updatedNumberScheduled", 0),
        status.get("numberAvailable", 0),
        selector(pod.get("nodeSelector")),
        age(obj["metadata"].get("creationTimestamp"), now),
        *_template(spec),
    ]


def job(obj: Object, now: dt.datetime) -> list[Any]:
    spec, status = obj.get("spec") or {}, obj.get("status") or {}
    done = status.get("succeeded", 0)
    wanted = spec.get("completions")
    if wanted is None:
        parallelism = spec.get("parallelism", 0)
        completions = f"{done}/1 of {parallelism}" if parallelism > 1 else f"{done}/1"
    else:
        completions = f"{done}/{wanted}"
    return [
        obj["metadata"]["name"],
        _job_state(obj, status),
        completions,
        _job_duration(status, now),
        age(obj["metadata"].get("creationTimestamp"), now),
        *_template(spec),
    ]


def _job_state(obj: Object, status: Object) -> str:
    true = {
        each.get("type") for each in status.get("conditions") or () if each.get("status") == "True"
    }
    for condition, word in (
        ("Complete", "Complete"),
        ("Failed", "Failed"),
        ("Suspended", "Suspended"),
        ("FailureTarget", "FailureTarget"),
        ("SuccessCriteriaMet", "SuccessCriteriaMet"),
    ):
        if condition in true:
            return word
    return "Terminating" if obj["metadata"].get("deletionTimestamp") else "Running"


def _job_duration(status: Object, now: dt.datetime) -> str:
    start, end = status.get("startTime"), status.get("completionTime")
    if not start:
        return ""
    if not end:
        return age(start, now)
    span = dt.datetime.fromisoformat(end) - dt.datetime.fromisoformat(start)
    return duration(span.total_seconds())


def _template(spec: Object) -> tuple[str, str, str]:
    """Return the cells of the wide form: containers, images, selector."""
    containers = ((spec.get("template") or {}).get("spec") or {}).get("containers") or ()
    names = joined(each.get("name", "") for each in containers)
    images = joined(each.get("image", "") for each in containers)
    return (names, images, selector(spec.get("selector")))


Row = Callable[[Object, dt.datetime], list[Any]]
_RBAC = "rbac.authorization.k8s.io"
_ADMISSION = "admissionregistration.k8s.io"
_ROLE = "node-role.kubernetes.io/"


class Sheet(msgspec.Struct, frozen=True):
    """How a kind is printed: names of columns, those of the wide form, and the cells."""

    columns: tuple[str, ...]
    wide: tuple[str, ...]
    row: Row


def _name(obj: Object) -> str:
    return str(obj["metadata"].get("name", ""))


def _age(obj: Object, now: dt.datetime) -> str:
    return age(obj["metadata"].get("creationTimestamp"), now)


def _named(obj: Object, now: dt.datetime) -> list[Any]:
    return [_name(obj), _age(obj, now)]


def _node(obj: Object, now: dt.datetime) -> list[Any]:
    metadata, status = obj["metadata"], obj.get("status") or {}
    states = [
        "Ready" if each.get("status") == "True" else "NotReady"
        for each in status.get("conditions") or ()
        if each.get("type") == "Ready"
    ] or ["Unknown"]
    if (obj.get("spec") or {}).get("unschedulable"):
        states.append("SchedulingDisabled")
    roles = set()
    for key, value in (metadata.get("labels") or {}).items():
        if key.startswith(_ROLE) and len(key) > len(_ROLE):
            roles.add(key.removeprefix(_ROLE))
        elif key == "kubernetes.io/role" and value:
            roles.add(value)
    addresses = {each.get("type"): each.get("address") for each in status.get("addresses") or ()}
    info = status.get("nodeInfo") or {}
    return [
        metadata["name"],
        ",".join(states),
        joined(sorted(roles)),
        _age(obj, now),
        info.get("kubeletVersion", ""),
        addresses.get("InternalIP") or NONE,
        addresses.get("ExternalIP") or NONE,
        info.get("osImage") or UNKNOWN,
        info.get("kernelVersion") or UNKNOWN,
        info.get("containerRuntimeVersion") or UNKNOWN,
    ]


def _namespace(obj: Object, now: dt.datetime) -> list[Any]:
    return [_name(obj), (obj.get("status") or {}).get("phase", ""), _age(obj, now)]


def _config_map(obj: Object, now: dt.datetime) -> list[Any]:
    count = len(obj.get("data") or {}) + len(obj.get("binaryData") or {})
    return [_name(obj), count, _age(obj, now)]


def _secret(obj: Object, now: dt.datetime) -> list[Any]:
    return [_name(obj), obj.get("type", ""), len(obj.get("data") or {}), _age(obj, now)]


def _event(obj: Object, now: dt.datetime) -> list[Any]:
    about = obj.get("involvedObject") or obj.get("regarding") or {}
    source = obj.get("source") or obj.get("deprecatedSource") or {}
    series = obj.get("series") or {}
    first_seen = obj.get("firstTimestamp") or obj.get("deprecatedFirstTimestamp")
    last_seen = obj.get("lastTimestamp") or obj.get("deprecatedLastTimestamp")
    first = age(first_seen or obj.get("eventTime"), now)
    last = age(series.get("lastObservedTime"), now) if series else age(last_seen, now)
    count = series.get("count") or obj.get("count") or obj.get("deprecatedCount") or 1
    reporter = obj.get("reportingComponent") or obj.get("reportingController") or ""
    host = source.get("host", "")
    component = source.get("component") or reporter
    return [
        first if last == UNKNOWN else last,
        obj.get("type", ""),
        obj.get("reason", ""),
        f"{str(about.get('kind', '')).lower()}/{about.get('name', '')}",
        about.get("fieldPath", ""),
        f"{component}, {host}" if host else component,
        str(obj.get("message") or obj.get("note") or "").strip(),
        first,
        count,
        _name(obj),
    ]


def _quota(obj: Object, now: dt.datetime) -> list[Any]:
    status = obj.get("status") or {}
    hard = status.get("hard") or (obj.get("spec") or {}).get("hard") or {}
    used = status.get("used") or {}
    shown: dict[bool, list[str]] = {False: [], True: []}
    for resource in sorted(hard):
        cell = f"{resource}: {used.get(resource, 0)}/{hard[resource]}"
        shown[resource.startswith("limits.")].append(cell)
    return [_name(obj), ", ".join(shown[False]), ", ".join(shown[True]), _age(obj, now)]


def _service(obj: Object, now: dt.datetime) -> list[Any]:
    spec = obj.get("spec") or {}
    ports = []
    for port in spec.get("ports") or ():
        number = f":{port['nodePort']}" if port.get("nodePort") else ""
        ports.append(f"{port.get('port')}{number}/{port.get('protocol', 'TCP')}")
    kind = spec.get("type", "ClusterIP")
    address = spec.get("clusterIP") or NONE
    external = joined(spec.get("externalIPs") or ())
    if kind == "ExternalName":
        address, external = NONE, spec.get("externalName", NONE)
    elif kind == "LoadBalancer" and external == NONE:
        external = "<pending>"
    chosen = selector(spec.get("selector"))
    return [_name(obj), kind, address, external, joined(ports), _age(obj, now), chosen]


def _endpoints(obj: Object, now: dt.datetime) -> list[Any]:
    found = []
    for subset in obj.get("subsets") or ():
        for address in subset.get("addresses") or ():
            ports = subset.get("ports") or ()
            found += [f"{address.get('ip')}:{port.get('port')}" for port in ports] or [
                str(address.get("ip"))
            ]
    shown = found[:3]
    more = f" + {len(found) - len(shown)} more..." if len(found) > len(shown) else ""
    return [_name(obj), joined(shown) + more, _age(obj, now)]


def _lease(obj: Object, now: dt.datetime) -> list[Any]:
    return [_name(obj), (obj.get("spec") or {}).get("holderIdentity", ""), _age(obj, now)]


def _webhooks(obj: Object, now: dt.datetime) -> list[Any]:
    return [_name(obj), len(obj.get("webhooks") or ()), _age(obj, now)]


def _role(obj: Object, _: dt.datetime) -> list[Any]:
    return [_name(obj), obj["metadata"].get("creationTimestamp", "")]


def _role_binding(obj: Object, now: dt.datetime) -> list[Any]:
    subjects: dict[str, list[str]] = {"User": [], "Group": [], "ServiceAccount": []}
    for each in obj.get("subjects") or ():
        place = f"{each['namespace']}/" if each.get("kind") == "ServiceAccount" else ""
        subjects.setdefault(each.get("kind", ""), []).append(f"{place}{each.get('name', '')}")
    role = obj.get("roleRef") or {}
    reference = f"{role.get('kind', '')}/{role.get('name', '')}"
    others = [", ".join(subjects[kind]) for kind in ("User", "Group", "ServiceAccount")]
    return [_name(obj), reference, _age(obj, now), *others]


def _priority_class(obj: Object, now: dt.datetime) -> list[Any]:
    default = bool(obj.get("globalDefault"))
    policy = obj.get("preemptionPolicy", "")
    return [_name(obj), obj.get("value", 0), default, _age(obj, now), policy]


def _budget(obj: Object, now: dt.datetime) -> list[Any]:
    spec, status = obj.get("spec") or {}, obj.get("status") or {}
    least, most = (str(spec.get(field, "N/A")) for field in ("minAvailable", "maxUnavailable"))
    return [_name(obj), least, most, status.get("disruptionsAllowed", 0), _age(obj, now)]


def _runtime_class(obj: Object, now: dt.datetime) -> list[Any]:
    return [_name(obj), obj.get("handler", ""), _age(obj, now)]


PLAIN = Sheet(("Name", "Age"), (), _named)
_EVENTS = Sheet(
    ("Last Seen", "Type", "Reason", "Object", "Subobject", "Source", "Message"),
    ("First Seen", "Count", "Name"),
    _event,
)
_HOOKS = Sheet(("Name", "Webhooks", "Age"), (), _webhooks)
_BINDINGS = Sheet(("Name", "Role", "Age"), ("Users", "Groups", "ServiceAccounts"), _role_binding)
_ROLES = Sheet(("Name", "Created At"), (), _role)
#: Columns of the wide form that are among the others.
WIDE_BETWEEN = frozenset({"Subobject", "Source"})
INTEGERS = frozenset({"Webhooks", "Value", "Allowed Disruptions"})
SHEETS: dict[tuple[str, str], Sheet] = {
    ("", "Pod"): Sheet(
        ("Name", "Ready", "Status", "Restarts", "Age"),
        ("IP", "Node", "Nominated Node", "Readiness Gates"),
        pod_rows.row,
    ),
    ("", "Node"): Sheet(
        ("Name", "Status", "Roles", "Age", "Version"),
        ("Internal-IP", "External-IP", "OS-Image", "Kernel-Version", "Container-Runtime"),
        _node,
    ),
    ("", "Namespace"): Sheet(("Name", "Status", "Age"), (), _namespace),
    ("", "ConfigMap"): Sheet(("Name", "Data", "Age"), (), _config_map),
    ("", "Secret"): Sheet(("Name", "Type", "Data", "Age"), (), _secret),
    ("", "ServiceAccount"): PLAIN,
    ("", "Event"): _EVENTS,
    ("events.k8s.io", "Event"): _EVENTS,
    ("", "ResourceQuota"): Sheet(("Name", "Request", "Limit", "Age"), (), _quota),
    ("", "Service"): Sheet(
        ("Name", "Type", "Cluster-IP", "External-IP", "Port(s)", "Age"), ("Selector",), _service
    ),
    ("", "Endpoints"): Sheet(("Name", "Endpoints", "Age"), (), _endpoints),
    ("apps", "Deployment"): Sheet(
        ("Name", "Ready", "Up-to-date", "Available", "Age"),
        ("Containers", "Images", "Selector"),
        deployment,
    ),
    ("apps", "ReplicaSet"): Sheet(
        ("Name", "Desired", "Current", "Ready", "Age"),
        ("Containers", "Images", "Selector"),
        replica_set,
    ),
    ("apps", "DaemonSet"): Sheet(
        *(
            (
                *("Name", "Desired", "Current", "Ready", "Up-to-date", "Available"),
                *("Node Selector", "Age"),
            ),
            ("Containers", "Images", "Selector"),
        ),
        daemon_set,
    ),
    ("batch", "Job"): Sheet(
        ("Name", "Status", "Completions", "Duration", "Age"),
        ("Containers", "Images", "Selector"),
        job,
    ),
    ("coordination.k8s.io", "Lease"): Sheet(("Name", "Holder", "Age"), (), _lease),
    (_ADMISSION, "MutatingWebhookConfiguration"): _HOOKS,
    (_ADMISSION, "ValidatingWebhookConfiguration"): _HOOKS,
    (_RBAC, "Role"): _ROLES,
    (_RBAC, "ClusterRole"): _ROLES,
    (_RBAC, "RoleBinding"): _BINDINGS,
    (_RBAC, "ClusterRoleBinding"): _BINDINGS,
    ("scheduling.k8s.io", "PriorityClass"): Sheet(
        ("Name", "Value", "Global-Default", "Age", "PreemptionPolicy"), (), _priority_class
    ),
    ("policy", "PodDisruptionBudget"): Sheet(
        ("Name", "Min Available", "Max Unavailable", "Allowed Disruptions", "Age"), (), _budget
    ),
    ("node.k8s.io", "RuntimeClass"): Sheet(("Name", "Handler", "Age"), (), _runtime_class),
}
