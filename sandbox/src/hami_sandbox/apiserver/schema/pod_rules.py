"""Rules of a pod, or of a pod's template."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from hami_sandbox.apiserver.refusals import Object
from hami_sandbox.apiserver.schema import causes, metadata_rules, names, resource_rules
from hami_sandbox.apiserver.schema.causes import Cause

RESTARTS = ("Always", "OnFailure", "Never")
_DNS = ("ClusterFirstWithHostNet", "ClusterFirst", "Default", "None")
_PULLS = ("Always", "IfNotPresent", "Never")
_PROTOCOLS = ("SCTP", "TCP", "UDP")
_EFFECTS = ("NoSchedule", "PreferNoSchedule", "NoExecute")
_OPERATORS = ("Equal", "Exists")
_MATCHES = ("DoesNotExist", "Exists", "Gt", "In", "Lt", "NotIn")
_LAST_PORT = 65535


def spec(found: Object, field: str = "spec") -> Iterator[Cause]:
    """Yield what is wrong with a pod's spec."""
    yield from _volumes(found.get("volumes") or (), f"{field}.volumes")
    known = {volume.get("name") for volume in found.get("volumes") or ()}
    if not found.get("containers"):
        yield causes.required(f"{field}.containers")
    seen: set[str] = set()
    for part in ("containers", "initContainers"):
        for place, each in enumerate(found.get(part) or ()):
            yield from _container(each, f"{field}.{part}[{place}]", known, seen, part)
    yield from _one_of(found, field, "restartPolicy", RESTARTS)
    yield from _one_of(found, field, "dnsPolicy", _DNS)
    yield from metadata_rules.labels(found.get("nodeSelector") or {}, f"{field}.nodeSelector")
    yield from _deadline(found, field)
    for place, each in enumerate(found.get("tolerations") or ()):
        yield from _toleration(each, f"{field}.tolerations[{place}]")
    yield from _references(found, field)
    yield from _affinity(found.get("affinity") or {}, f"{field}.affinity")


def _deadline(found: Object, field: str) -> Iterator[Cause]:
    deadline = found.get("activeDeadlineSeconds")
    if deadline is not None and deadline < 1:
        told = "must be between 1 and 2147483647, inclusive"
        yield causes.invalid(f"{field}.activeDeadlineSeconds", deadline, told)


def _references(found: Object, field: str) -> Iterator[Cause]:
    for part in ("nodeName", "serviceAccountName", "priorityClassName", "runtimeClassName"):
        if text := found.get(part):
            for wrong in names.subdomain(text):
                yield causes.invalid(f"{field}.{part}", text, wrong)
    if found.get("nodeName") and found.get("schedulingGates"):
        told = "cannot be set until all schedulingGates have been cleared"
        yield causes.forbidden(f"{field}.nodeName", told)
    gates: set[str] = set()
    for place, gate in enumerate(found.get("schedulingGates") or ()):
        name = gate.get("name", "")
        for wrong in names.qualified(name):
            yield causes.invalid(f"{field}.schedulingGates[{place}]", name, wrong)
        if name in gates:
            yield causes.duplicate(f"{field}.schedulingGates[{place}]", name)
        gates.add(name)


def _volumes(volumes: Sequence[Object], field: str) -> Iterator[Cause]:
    seen: set[str] = set()
    for place, volume in enumerate(volumes):
        name = volume.get("name", "")
        where = f"{field}[{place}]"
        if not name:
            yield causes.required(f"{where}.name")
        else:
            for wrong in names.label(name):
                yield causes.invalid(f"{where}.name", name, wrong)
        if name in seen:
            yield causes.duplicate(f"{where}.name", name)
        seen.add(name)
        sources = [key for key in volume if key != "name"]
        for extra in sources[1:]:
            yield causes.forbidden(f"{where}.{extra}", "may not specify more than 1 volume type")
        if "hostPath" in volume and not volume["hostPath"].get("path"):
            yield causes.required(f"{where}.hostPath.path")
        if "secret" in volume and not volume["secret"].get("secretName"):
            yield causes.required(f"{where}.secret.secretName")
        if "configMap" in volume and not volume["configMap"].get("name"):
            yield causes.required(f"{where}.configMap.name")


def _container(
    each: Object, field: str, volumes: set[Any], seen: set[str], part: str
) -> Iterator[Cause]:
    name = each.get("name", "")
    if not name:
        yield causes.required(f"{field}.name")
    else:
        for wrong in names.label(name):
            yield causes.invalid(f"{field}.name", name, wrong)
        if name in seen:
            yield causes.duplicate(f"{field}.name", name)
        seen.add(name)
    image = each.get("image", "")
    if not image:
        yield causes.required(f"{field}.image")
    elif image != image.strip():
        told = "must not have leading or trailing whitespace"
        yield causes.invalid(f"{field}.image", image, told)
    yield from _one_of(each, field, "imagePullPolicy", _PULLS)
    if part == "initContainers" and each.get("restartPolicy") not in {None, *RESTARTS}:
        yield causes.unsupported(f"{field}.restartPolicy", each["restartPolicy"], RESTARTS)
    yield from _ports(each.get("ports") or (), f"{field}.ports")
    yield from _environment(each.get("env") or (), f"{field}.env")
    yield from resource_rules.requirements(each.get("resources") or {}, f"{field}.resources")
    yield from _mounts(each.get("volumeMounts") or (), f"{field}.volumeMounts", volumes)


def _ports(ports: Sequence[Object], field: str) -> Iterator[Cause]:
    for place, port in enumerate(ports):
        where = f"{field}[{place}]"
        number = port.get("containerPort", 0)
        if not number:
            yield causes.required(f"{where}.containerPort")
        elif not 0 < number <= _LAST_PORT:
            told = "must be between 1 and 65535, inclusive"
            yield causes.invalid(f"{where}.containerPort", number, told)
        yield from _one_of(port, where, "protocol", _PROTOCOLS)


def _environment(variables: Sequence[Object], field: str) -> Iterator[Cause]:
    for place, variable in enumerate(variables):
        name = variable.get("name", "")
        if not name:
            yield causes.required(f"{field}[{place}].name")
        else:
            for wrong in names.variable(name):
                yield causes.invalid(f"{field}[{place}].name", name, wrong)
        if variable.get("value") and variable.get("valueFrom"):
            told = "may not be specified when `value` is not empty"
            yield causes.invalid(f"{field}[{place}].valueFrom", "", told)


def _mounts(mounts: Sequence[Object], field: str, volumes: set[Any]) -> Iterator[Cause]:
    paths: set[str] = set()
    for place, mount in enumerate(mounts):
        name, path = mount.get("name", ""), mount.get("mountPath", "")
        if not name:
            yield causes.required(f"{field}[{place}].name")
        elif name not in volumes:
            where = f"{field}[{place}].name"
            yield Cause(where, "FieldValueNotFound", f'Not found: "{name}"')
        if not path:
            yield causes.required(f"{field}[{place}].mountPath")
        elif path in paths:
            yield causes.invalid(f"{field}[{place}].mountPath", path, "must be unique")
        paths.add(path)


def _toleration(each: Object, field: str) -> Iterator[Cause]:
    key = each.get("key", "")
    if key:
        for wrong in names.qualified(key):
            yield causes.invalid(f"{field}.key", key, wrong)
    elif each.get("operator") != "Exists":
        told = 'operator must be Exists when `key` is empty, which means "match all values and all keys"'  # noqa: E501 - one sentence of the API  # fmt: skip
        yield causes.invalid(f"{field}.operator", each.get("operator", ""), told)
    if each.get("operator") == "Exists" and each.get("value"):
        told = "value must be empty when `operator` is 'Exists'"
        yield causes.invalid(f"{field}.operator", each["value"], told)
    yield from _one_of(each, field, "operator", _OPERATORS)
    yield from _one_of(each, field, "effect", _EFFECTS)
    if "tolerationSeconds" in each and each.get("effect") != "NoExecute":
        told = "effect must be 'NoExecute' when `tolerationSeconds` is set"
        yield causes.invalid(f"{field}.effect", each.get("effect", ""), told)


def _affinity(found: Object, field: str) -> Iterator[Cause]:
    node = (found.get("nodeAffinity") or {}).get("requiredDuringSchedulingIgnoredDuringExecution")
    if node is None:
        return
    where = f"{field}.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms"
    if not node.get("nodeSelectorTerms"):
        yield causes.required(where, "must have at least one node selector term")
    for place, term in enumerate(node.get("nodeSelectorTerms") or ()):
        for number, rule in enumerate(term.get("matchExpressions") or ()):
            spot = f"{where}[{place}].matchExpressions[{number}]"
            if rule.get("operator") not in _MATCHES:
                told = "not a valid selector operator"
                yield causes.invalid(f"{spot}.operator", rule.get("operator", ""), told)
            if rule.get("operator") in {"In", "NotIn"} and not rule.get("values"):
                told = "must be specified when `operator` is 'In' or 'NotIn'"
                yield causes.required(f"{spot}.values", told)


def _one_of(found: Object, field: str, part: str, allowed: Sequence[str]) -> Iterator[Cause]:
    value = found.get(part)
    if value and value not in allowed:
        yield causes.unsupported(f"{field}.{part}", value, allowed)
