"""Defaults of pods and pod templates."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction

from hami.wire import quantity
from hami.wire.errors import WireError
from hami_sandbox.apiserver.refusals import Object

_POD = {
    "restartPolicy": "Always",
    "terminationGracePeriodSeconds": 30,
    "dnsPolicy": "ClusterFirst",
    "schedulerName": "default-scheduler",
}
_PROBE = {"timeoutSeconds": 1, "periodSeconds": 10, "successThreshold": 1, "failureThreshold": 3}
_FILE_MODE = 0o644
_TOKEN_LIFE = 3600
_SOURCES_WITH_MODE = ("secret", "configMap", "downwardAPI", "projected")
_NODE_TROUBLE = ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable")
_TOLERATED_SECONDS = 300
_QUALITY = ("cpu", "memory")


def containers(spec: Object) -> Iterator[Object]:
    """Yield all containers of a pod, those that initialise it first."""
    for field in ("initContainers", "containers", "ephemeralContainers"):
        yield from spec.get(field) or ()


def pod_spec(spec: Object, *, template: bool) -> None:
    """Fill in a pod's spec, in place."""
    for field, value in _POD.items():
        spec.setdefault(field, value)
    spec.setdefault("securityContext", {})
    if spec["terminationGracePeriodSeconds"] < 0:
        spec["terminationGracePeriodSeconds"] = 1
    if not template:
        spec.setdefault("enableServiceLinks", True)
    if account := spec.get("serviceAccountName") or spec.get("serviceAccount"):
        spec["serviceAccountName"] = spec["serviceAccount"] = account
    for each in containers(spec):
        _container(each, template=template, host_network=bool(spec.get("hostNetwork")))
    for volume in spec.get("volumes") or ():
        _volume(volume)
    for constraint in spec.get("topologySpreadConstraints") or ():
        constraint.setdefault("whenUnsatisfiable", "DoNotSchedule")


def _container(each: Object, *, template: bool, host_network: bool) -> None:
    each.setdefault("terminationMessagePath", "/dev/termination-log")
    each.setdefault("terminationMessagePolicy", "File")
    each.setdefault("imagePullPolicy", _pull_policy(each.get("image") or ""))
    for port in each.get("ports") or ():
        port.setdefault("protocol", "TCP")
        if host_network and "containerPort" in port:
            port.setdefault("hostPort", port["containerPort"])
    for variable in each.get("env") or ():
        source = variable.get("valueFrom") or {}
        if "fieldRef" in source:
            source["fieldRef"].setdefault("apiVersion", "v1")
        if "resourceFieldRef" in source:
            source["resourceFieldRef"].setdefault("divisor", "0")
    _probes(each)
    resources = each.setdefault("resources", {})
    if not template and resources.get("limits"):
        requests = resources.setdefault("requests", {})
        for name, amount in resources["limits"].items():
            requests.setdefault(name, amount)


def _probes(each: Object) -> None:
    for name in ("livenessProbe", "readinessProbe", "startupProbe"):
        if name in each:
            for field, value in _PROBE.items():
                each[name].setdefault(field, value)
            _http(each[name].get("httpGet"))
    for handler in (each.get("lifecycle") or {}).values():
        if isinstance(handler, dict):
            _http(handler.get("httpGet"))


def _pull_policy(image: str) -> str:
    name = image.rpartition("/")[2]
    if "@" in name:
        return "IfNotPresent"
    _, colon, tag = name.partition(":")
    return "IfNotPresent" if colon and tag != "latest" else "Always"


def _http(action: Object | None) -> None:
    if action is not None:
        action.setdefault("path", "/")
        action.setdefault("scheme", "HTTP")


def _volume(volume: Object) -> None:
    if len(volume) == 1 and "name" in volume:
        volume["emptyDir"] = {}
    for source in _SOURCES_WITH_MODE:
        if source in volume:
            volume[source].setdefault("defaultMode", _FILE_MODE)
    if "hostPath" in volume:
        volume["hostPath"].setdefault("type", "")
    for source in (volume.get("projected") or {}).get("sources") or ():
        if "serviceAccountToken" in source:
            source["serviceAccountToken"].setdefault("expirationSeconds", _TOKEN_LIFE)
    items = [
        *((volume.get("downwardAPI") or {}).get("items") or ()),
        *(
            item
            for source in (volume.get("projected") or {}).get("sources") or ()
            for item in (source.get("downwardAPI") or {}).get("items") or ()
        ),
    ]
    for item in items:
        if "fieldRef" in item:
            item["fieldRef"].setdefault("apiVersion", "v1")


def admit(pod: Object, priority_class: Object | None) -> None:
    """Do what the built-in admission does to a new pod (account, priority, tolerations)."""
    spec = pod.setdefault("spec", {})
    account = spec.get("serviceAccountName") or spec.get("serviceAccount") or "default"
    spec["serviceAccountName"] = spec["serviceAccount"] = account
    if priority_class is not None:
        spec["priorityClassName"] = priority_class["metadata"]["name"]
    chosen = priority_class or {}
    spec["priority"] = chosen.get("value", 0)
    spec.setdefault("preemptionPolicy", chosen.get("preemptionPolicy", "PreemptLowerPriority"))
    tolerations = spec.setdefault("tolerations", [])
    for key in _NODE_TROUBLE:
        if not any(_tolerates(each, key) for each in tolerations):
            tolerations.append(
                {
                    "key": key,
                    "operator": "Exists",
                    "effect": "NoExecute",
                    "tolerationSeconds": _TOLERATED_SECONDS,
                }
            )


def _tolerates(toleration: Object, key: str) -> bool:
    return toleration.get("key", "") in {"", key} and toleration.get("effect", "") in {
        "",
        "NoExecute",
    }


def quality(pod: Object) -> str:
    """Return the class of a pod by its amounts of processor and memory."""
    limits, requests, complete = dict[str, Fraction](), dict[str, Fraction](), True
    for each in containers({**pod["spec"], "ephemeralContainers": []}):
        resources = each.get("resources") or {}
        limited = _add_up(resources.get("limits") or {}, limits)
        _add_up(resources.get("requests") or {}, requests)
        complete = complete and limited == set(_QUALITY)
    if not limits and not requests:
        return "BestEffort"
    return "Guaranteed" if complete and limits == requests else "Burstable"


def _add_up(amounts: Object, total: dict[str, Fraction]) -> set[str]:
    found = set()
    for name in _QUALITY:
        try:
            value = quantity.parse(amounts.get(name, 0), what=name)
        except WireError:
            continue  # validation refuses it
        if value > 0:
            total[name] = total.get(name, Fraction(0)) + value
            found.add(name)
    return found
