"""What a pod can be told of itself: fieldRef and resourceFieldRef, in variables and in files."""

from __future__ import annotations

import re
from collections.abc import Mapping

import msgspec

from hami.wire import quantity
from hami_sandbox.kubelet import pod as pods
from hami_sandbox.kubelet.pod import Object

_SUBSCRIPT = re.compile(r"metadata\.(labels|annotations)\['([^']+)'\]")


class NodeFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What is the same for all pods of a node."""

    name: str
    address: str
    #: Stands in for the limit of a container that has none.
    allocatable: Mapping[str, str]


class FieldError(ValueError):
    """A reference names something that there is not."""


def field(pod: Object, path: str, node: NodeFacts) -> str:
    """Return the value of a fieldRef."""
    meta = pod["metadata"]
    if subscript := _SUBSCRIPT.fullmatch(path):
        return str((meta.get(subscript[1]) or {}).get(subscript[2], ""))
    if path in {"metadata.labels", "metadata.annotations"}:
        found = meta.get(path.removeprefix("metadata.")) or {}
        # As in a file of the downward API: sorted, and quoted as Go quotes.
        return "\n".join(f"{key}={_quoted(value)}" for key, value in sorted(found.items()))
    values = {
        "metadata.name": pods.name(pod),
        "metadata.namespace": pods.namespace(pod),
        "metadata.uid": pods.uid(pod),
        "spec.nodeName": node.name,
        "spec.serviceAccountName": pods.spec(pod).get("serviceAccountName") or "default",
        "status.hostIP": node.address,
        "status.hostIPs": node.address,
        "status.podIP": node.address,
        "status.podIPs": node.address,
    }
    if path not in values:
        raise FieldError(f"field label not supported: {path}")
    return str(values[path])


def resource(pod: Object, container: Object, reference: Object, node: NodeFacts) -> str:
    """Return the value of a resourceFieldRef: a whole number of divisors, rounded up."""
    name = reference.get("containerName")
    if name:
        found = [each for each in pods.in_order(pod) if each["name"] == name]
        if not found:
            raise FieldError(f'container "{name}" not found')
        container = found[0]
    kind, _, wanted = str(reference.get("resource", "")).partition(".")
    if kind not in {"limits", "requests"} or not wanted:
        raise FieldError(f"unsupported container resource: {reference.get('resource')}")
    amounts = (container.get("resources") or {}).get(kind) or {}
    amount = amounts.get(wanted)
    if amount is None:
        amount = node.allocatable.get(wanted, "0") if kind == "limits" else "0"
    divisor = quantity.parse(reference.get("divisor") or "1", what="divisor") or 1
    value = quantity.parse(amount, what=wanted) / divisor
    return str(-(-value.numerator // value.denominator))


def _quoted(text: object) -> str:
    escaped = str(text).replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'
