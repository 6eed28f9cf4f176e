"""Validation rules of pods: fields, amounts, allowed changes.

Quantities are stored in one canonical form, whatever form they were written in. Devices come in
whole numbers only.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator, Sequence
from fractions import Fraction
from typing import Any

from hami.wire import quantity
from hami.wire.errors import WireError
from hami_sandbox.apiserver.refusals import Object
from hami_sandbox.apiserver.schema import names
from hami_sandbox.apiserver.schema.names import Cause

_PARTS = ("containers", "initContainers")
_FIXED = (
    "pod updates may not change fields other than `spec.containers[*].image`,"
    "`spec.initContainers[*].image`,`spec.activeDeadlineSeconds`,`spec.tolerations` (only "
    "additions to existing tolerations),`spec.terminationGracePeriodSeconds` (allow it to be set "
    "to 1 if it was previously negative)"
)
_FREE = ("activeDeadlineSeconds", "tolerations")
#: Fields that may still change while a gate holds the pod back.
_FREE_BEHIND_GATE = ("nodeSelector", "affinity", "schedulingGates")


RULE = "quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'"
_BINARY = ("", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei")
_DECIMAL = {-9: "n", -6: "u", -3: "m", 0: "", 3: "k", 6: "M", 9: "G", 12: "T", 15: "P", 18: "E"}
_EXPONENT = re.compile(r"[0-9.][eE][+-]?[0-9]+$")
_LEAST_BINARY = 1024  # smaller amounts are written as decimal numbers
NANO, MILLI = -9, -3


_STANDARD = frozenset({"cpu", "memory", "ephemeral-storage"})
_HUGE_PAGES = "hugepages-"
_STRANGE = "must be a standard resource type or fully qualified"
WHOLE = "must be an integer"


def is_extended(name: str) -> bool:
    """Return whether a resource is a device plugin's."""
    return "/" in name and "kubernetes.io/" not in name and not name.startswith("requests.")


def amounts(found: Object, field: str, *, dotted: bool = False) -> Iterator[Cause]:
    """Yield what is wrong with amounts, whatever they are for."""
    for name, amount in found.items():
        place = f"{field}.{name}" if dotted else f"{field}[{name}]"
        for wrong in names.qualified(name):
            yield names.invalid(place, name, wrong)
        if quantity.parse(amount, what=name) < 0:
            yield names.invalid(place, amount, "must be greater than or equal to 0")
        elif is_extended(name) and not whole(amount):
            yield names.invalid(place, amount, WHOLE)


def requirements(resources: Object, field: str) -> Iterator[Cause]:
    """Yield what is wrong with a container's requests and limits."""
    limits, requests = resources.get("limits") or {}, resources.get("requests") or {}
    for part, found in (("limits", limits), ("requests", requests)):
        yield from amounts(found, f"{field}.{part}")
        for name in found:
            if "/" not in name and name not in _STANDARD and not name.startswith(_HUGE_PAGES):
                place = f"{field}.{part}[{name}]"
                yield names.invalid(place, name, _STRANGE)
                yield names.invalid(place, name, "must be a standard resource for containers")
    for name, amount in requests.items():
        yield from _against_limit(name, amount, limits, field)


def _against_limit(name: str, amount: str, limits: Object, field: str) -> Iterator[Cause]:
    fixed = is_extended(name) or name.startswith(_HUGE_PAGES)
    if name not in limits:
        if fixed:
            why = "Limit must be set for non overcommitable resources"
            yield names.required(f"{field}.limits", why)
        return
    asked, most = (quantity.parse(each, what=name) for each in (amount, limits[name]))
    place = f"{field}.requests"
    if fixed and asked != most:
        yield names.invalid(place, amount, f"must be equal to {name} limit of {limits[name]}")
    elif asked > most:
        why = f"must be less than or equal to {name} limit of {limits[name]}"
        yield names.invalid(place, amount, why)


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
        yield names.required(f"{field}.containers")
    seen: set[str] = set()
    for part in ("containers", "initContainers"):
        for place, each in enumerate(found.get(part) or ()):
            yield from _container(each, f"{field}.{part}[{place}]", known, seen, part)
    yield from _one_of(found, field, "restartPolicy", RESTARTS)
    yield from _one_of(found, field, "dnsPolicy", _DNS)
    yield from names.labels(found.get("nodeSelector") or {}, f"{field}.nodeSelector")
    yield from _deadline(found, field)
    for place, each in enumerate(found.get("tolerations") or ()):
        yield from _toleration(each, f"{field}.tolerations[{place}]")
    yield from _references(found, field)
    yield from _affinity(found.get("affinity") or {}, f"{field}.affinity")


def _deadline(found: Object, field: str) -> Iterator[Cause]:
    deadline = found.get("activeDeadlineSeconds")
    if deadline is not None and deadline < 1:
        why = "must be between 1 and 2147483647, inclusive"
        yield names.invalid(f"{field}.activeDeadlineSeconds", deadline, why)


def _references(found: Object, field: str) -> Iterator[Cause]:
    for part in ("nodeName", "serviceAccountName", "priorityClassName", "runtimeClassName"):
        if text := found.get(part):
            for wrong in names.subdomain(text):
                yield names.invalid(f"{field}.{part}", text, wrong)
    if found.get("nodeName") and found.get("schedulingGates"):
        why = "cannot be set until all schedulingGates have been cleared"
        yield names.forbidden(f"{field}.nodeName", why)
    gates: set[str] = set()
    for place, gate in enumerate(found.get("schedulingGates") or ()):
        name = gate.get("name", "")
        for wrong in names.qualified(name):
            yield names.invalid(f"{field}.schedulingGates[{place}]", name, wrong)
        if name in gates:
            yield names.duplicate(f"{field}.schedulingGates[{place}]", name)
        gates.add(name)


def _volumes(volumes: Sequence[Object], field: str) -> Iterator[Cause]:
    seen: set[str] = set()
    for place, volume in enumerate(volumes):
        name = volume.get("name", "")
        where = f"{field}[{place}]"
        if not name:
            yield names.required(f"{where}.name")
        else:
            for wrong in names.label(name):
                yield names.invalid(f"{where}.name", name, wrong)
        if name in seen:
            yield names.duplicate(f"{where}.name", name)
        seen.add(name)
        sources = [key for key in volume if key != "name"]
        for extra in sources[1:]:
            yield names.forbidden(f"{where}.{extra}", "may not specify more than 1 volume type")
        if "hostPath" in volume and not volume["hostPath"].get("path"):
            yield names.required(f"{where}.hostPath.path")
        if "secret" in volume and not volume["secret"].get("secretName"):
            yield names.required(f"{where}.secret.secretName")
        if "configMap" in volume and not volume["configMap"].get("name"):
            yield names.required(f"{where}.configMap.name")


def _container(
    each: Object, field: str, volumes: set[Any], seen: set[str], part: str
) -> Iterator[Cause]:
    name = each.get("name", "")
    if not name:
        yield names.required(f"{field}.name")
    else:
        for wrong in names.label(name):
            yield names.invalid(f"{field}.name", name, wrong)
        if name in seen:
            yield names.duplicate(f"{field}.name", name)
        seen.add(name)
    image = each.get("image", "")
    if not image:
        yield names.required(f"{field}.image")
    elif image != image.strip():
        why = "must not have leading or trailing whitespace"
        yield names.invalid(f"{field}.image", image, why)
    yield from _one_of(each, field, "imagePullPolicy", _PULLS)
    if part == "initContainers" and each.get("restartPolicy") not in {None, *RESTARTS}:
        yield names.unsupported(f"{field}.restartPolicy", each["restartPolicy"], RESTARTS)
    yield from _ports(each.get("ports") or (), f"{field}.ports")
    yield from _environment(each.get("env") or (), f"{field}.env")
    yield from requirements(each.get("resources") or {}, f"{field}.resources")
    yield from _mounts(each.get("volumeMounts") or (), f"{field}.volumeMounts", volumes)


def _ports(ports: Sequence[Object], field: str) -> Iterator[Cause]:
    for place, port in enumerate(ports):
        where = f"{field}[{place}]"
        number = port.get("containerPort", 0)
        if not number:
            yield names.required(f"{where}.containerPort")
        elif not 0 < number <= _LAST_PORT:
            why = "must be between 1 and 65535, inclusive"
            yield names.invalid(f"{where}.containerPort", number, why)
        yield from _one_of(port, where, "protocol", _PROTOCOLS)


def _environment(variables: Sequence[Object], field: str) -> Iterator[Cause]:
    for place, variable in enumerate(variables):
        name = variable.get("name", "")
        if not name:
            yield names.required(f"{field}[{place}].name")
        else:
            for wrong in names.variable(name):
                yield names.invalid(f"{field}[{place}].name", name, wrong)
        if variable.get("value") and variable.get("valueFrom"):
            why = "may not be specified when `value` is not empty"
            yield names.invalid(f"{field}[{place}].valueFrom", "", why)


def _mounts(mounts: Sequence[Object], field: str, volumes: set[Any]) -> Iterator[Cause]:
    paths: set[str] = set()
    for place, mount in enumerate(mounts):
        name, path = mount.get("name", ""), mount.get("mountPath", "")
        if not name:
            yield names.required(f"{field}[{place}].name")
        elif name not in volumes:
            where = f"{field}[{place}].name"
            yield Cause(where, "FieldValueNotFound", f'Not found: "{name}"')
        if not path:
            yield names.required(f"{field}[{place}].mountPath")
        elif path in paths:
            yield names.invalid(f"{field}[{place}].mountPath", path, "must be unique")
        paths.add(path)


def _toleration(each: Object, field: str) -> Iterator[Cause]:
    key = each.get("key", "")
    if key:
        for wrong in names.qualified(key):
            yield names.invalid(f"{field}.key", key, wrong)
    elif each.get("operator") != "Exists":
        why = 'operator must be Exists when `key` is empty, which means "match all values and all keys"'  # noqa: E501 - one sentence of the API  # fmt: skip
        yield names.invalid(f"{field}.operator", each.get("operator", ""), why)
    if each.get("operator") == "Exists" and each.get("value"):
        why = "value must be empty when `operator` is 'Exists'"
        yield names.invalid(f"{field}.operator", each["value"], why)
    yield from _one_of(each, field, "operator", _OPERATORS)
    yield from _one_of(each, field, "effect", _EFFECTS)
    if "tolerationSeconds" in each and each.get("effect") != "NoExecute":
        why = "effect must be 'NoExecute' when `tolerationSeconds` is set"
        yield names.invalid(f"{field}.effect", each.get("effect", ""), why)


def _affinity(found: Object, field: str) -> Iterator[Cause]:
    node = (found.get("nodeAffinity") or {}).get("requiredDuringSchedulingIgnoredDuringExecution")
    if node is None:
        return
    where = f"{field}.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms"
    if not node.get("nodeSelectorTerms"):
        yield names.required(where, "must have at least one node selector term")
    for place, term in enumerate(node.get("nodeSelectorTerms") or ()):
        for number, rule in enumerate(term.get("matchExpressions") or ()):
            spot = f"{where}[{place}].matchExpressions[{number}]"
            if rule.get("operator") not in _MATCHES:
                why = "not a valid selector operator"
                yield names.invalid(f"{spot}.operator", rule.get("operator", ""), why)
            if rule.get("operator") in {"In", "NotIn"} and not rule.get("values"):
                why = "must be specified when `operator` is 'In' or 'NotIn'"
                yield names.required(f"{spot}.values", why)


def _one_of(found: Object, field: str, part: str, allowed: Sequence[str]) -> Iterator[Cause]:
    value = found.get(part)
    if value and value not in allowed:
        yield names.unsupported(f"{field}.{part}", value, allowed)


def check(new: Object, old: Object) -> Iterator[Cause]:
    """Yield what of the change of a pod's spec is not allowed."""
    for part in _PARTS:
        if len(new.get(part) or ()) != len(old.get(part) or ()):
            yield names.forbidden(f"spec.{part}", "pod updates may not add or remove containers")
            return
    yield from _deadline_change(new.get("activeDeadlineSeconds"), old.get("activeDeadlineSeconds"))
    yield from _tolerations(new.get("tolerations") or [], old.get("tolerations") or [])
    yield from _gates(new, old)
    free = (*_FREE, *(_FREE_BEHIND_GATE if old.get("schedulingGates") else ()))
    changed = [
        name
        for name in sorted({*new, *old})
        if name not in free and _fixed(name, new) != _fixed(name, old)
    ]
    if changed:
        why = ", ".join(f"spec.{name}" for name in changed)
        yield names.forbidden("spec", f"{_FIXED}\nchanged: {why}")


def _fixed(name: str, spec: Object) -> Any:
    value = spec.get(name)
    if name in _PARTS and value:
        return [{**each, "image": ""} for each in value]
    return value


def _deadline_change(new: int | None, old: int | None) -> Iterator[Cause]:
    field = "spec.activeDeadlineSeconds"
    if old is None or new == old:
        return
    if new is None:
        yield names.invalid(field, None, "must not update from a positive integer to nil value")
    elif new > old:
        yield names.invalid(field, new, "must be less than or equal to previous value")


def _tolerations(new: list[Any], old: list[Any]) -> Iterator[Cause]:
    left = [{**each, "tolerationSeconds": None} for each in new]
    if any({**each, "tolerationSeconds": None} not in left for each in old):
        why = "existing toleration can not be modified except its tolerationSeconds"
        yield names.forbidden("spec.tolerations", why)


def _gates(new: Object, old: Object) -> Iterator[Cause]:
    before = old.get("schedulingGates") or ()
    for place, gate in enumerate(new.get("schedulingGates") or ()):
        if gate not in before:
            why = "only deletion is allowed, but found new scheduling gate"
            yield names.forbidden(f"spec.schedulingGates[{place}]", f"{why} '{gate.get('name')}'")


@functools.lru_cache(maxsize=4096)
def canonical(amount: str | float, *, least: int = NANO) -> str:
    """Return the canonical text; `least` is the smallest power of ten, and what is less rounds up.

    Raises ValueError with the words of the API server.
    """
    try:
        value = quantity.parse(amount, what="a quantity")
    except WireError:
        raise ValueError(RULE) from None
    text = str(amount).strip()
    if text.endswith("i") and abs(value) >= _LEAST_BINARY:
        return _binary(value)
    return _decimal(value, least, exponent=_EXPONENT.search(text) is not None)


def whole(amount: str | float) -> bool:
    """Return whether the amount is a whole number."""
    return quantity.parse(amount, what="a quantity").denominator == 1


def _away_from_zero(value: Fraction) -> int:
    size = -(-abs(value.numerator) // value.denominator)
    return -size if value < 0 else size


def _binary(value: Fraction) -> str:
    number, power = _away_from_zero(value), 0
    while number % 1024 == 0 and power < len(_BINARY) - 1:
        number, power = number // 1024, power + 1
    return f"{number}{_BINARY[power]}"


def _decimal(value: Fraction, least: int, *, exponent: bool) -> str:
    number, power = _away_from_zero(value / Fraction(10) ** least), least
    if number == 0:
        return "0"
    while number % 1000 == 0 and (exponent or power < max(_DECIMAL)):
        number, power = number // 1000, power + 3
    if exponent:
        return f"{number}e{power}" if power else str(number)
    return f"{number}{_DECIMAL[power]}"
