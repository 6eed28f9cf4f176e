"""A container's variables: values, references, the downward API.

fieldRef and resourceFieldRef serve variables and files. `$(NAME)` is expanded as Kubernetes does
it: an unknown name stays as it was written, `$$` is a plain dollar. Config maps and secrets are
read by References, once for a burst of pods.
"""

from __future__ import annotations

import re
import time
import urllib.parse
from base64 import b64decode
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import msgspec

from hami.kube import errors
from hami.kube.client import Client
from hami.wire import codec, quantity
from hami_sandbox.kubelet import pod as pods
from hami_sandbox.kubelet.pod import Object

_SUBSCRIPT = re.compile(r"metadata\.(labels|annotations)\['([^']+)'\]")


class NodeFacts(msgspec.Struct, frozen=True, kw_only=True):
    """Values that all pods of a node share."""

    name: str
    address: str
    #: Used as the limit of a container that has none.
    allocatable: Mapping[str, str]


class FieldError(ValueError):
    """A reference names an unknown field or container."""


def downward_field(pod: Object, path: str, node: NodeFacts) -> str:
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


_REFERENCE = re.compile(r"\$(?:\$|\(([^)]*)\))")


def expand(text: str, variables: Mapping[str, str]) -> str:
    def value(found: re.Match[str]) -> str:
        if found[0] == "$$":
            return "$"
        return variables.get(found[1], found[0])

    return _REFERENCE.sub(value, text)


_NAME = re.compile(r"[-._a-zA-Z][-._a-zA-Z0-9]*")
_KINDS = {"configMapKeyRef": "ConfigMap", "secretKeyRef": "Secret"}
_SOURCES = {"configMapRef": "ConfigMap", "secretRef": "Secret"}


class Reference(msgspec.Struct, frozen=True):
    """A config map or secret of the pod's namespace."""

    kind: str
    name: str

    @property
    def missing(self) -> str:
        return f'{self.kind.lower()} "{self.name}" not found'


#: Content of the references that exist, by key.
Found = Mapping[Reference, Mapping[str, bytes]]


class VariableError(ValueError):
    """The variables cannot be made; the text is kubelet's."""


def content(obj: Object) -> dict[str, bytes]:
    """Return the content of a config map or a secret."""
    if obj.get("kind") == "Secret":
        return {key: b64decode(value) for key, value in (obj.get("data") or {}).items()}
    texts = {key: str(value).encode() for key, value in (obj.get("data") or {}).items()}
    return texts | {key: b64decode(value) for key, value in (obj.get("binaryData") or {}).items()}


def wanted(container: Object) -> Iterator[Reference]:
    """Yield the references of a container's variables."""
    for source in container.get("envFrom") or ():
        for field, kind in _SOURCES.items():
            if source.get(field):
                yield Reference(kind, source[field].get("name", ""))
    for variable in container.get("env") or ():
        for field, kind in _KINDS.items():
            if reference := (variable.get("valueFrom") or {}).get(field):
                yield Reference(kind, reference.get("name", ""))


def variables(pod: Object, container: Object, found: Found, node: NodeFacts) -> dict[str, str]:
    made: dict[str, str] = {}
    for source in container.get("envFrom") or ():
        made |= _all_of(source, found)
    for variable in container.get("env") or ():
        value = _value(pod, container, variable, found=found, node=node, known=made)
        if value is not None:
            made[variable["name"]] = value
    return made


def _all_of(source: Object, found: Found) -> dict[str, str]:
    prefix = source.get("prefix") or ""
    made: dict[str, str] = {}
    for field, kind in _SOURCES.items():
        if not (named := source.get(field)):
            continue
        reference = Reference(kind, named.get("name", ""))
        if reference not in found:
            if named.get("optional"):
                continue
            raise VariableError(reference.missing)
        for key, value in found[reference].items():
            # A key that is no variable name is left out, as kubelet does.
            if _NAME.fullmatch(f"{prefix}{key}"):
                made[f"{prefix}{key}"] = value.decode(errors="replace")
    return made


def _value(
    pod: Object,
    container: Object,
    variable: Object,
    *,
    found: Found,
    node: NodeFacts,
    known: Mapping[str, str],
) -> str | None:
    source = variable.get("valueFrom")
    if not source:
        return expand(str(variable.get("value") or ""), known)
    try:
        if field := source.get("fieldRef"):
            return downward_field(pod, field.get("fieldPath", ""), node)
        if amount := source.get("resourceFieldRef"):
            return resource(pod, container, amount, node)
    except FieldError as error:
        raise VariableError(str(error)) from error
    for kind_field, kind in _KINDS.items():
        if named := source.get(kind_field):
            return _key(pod, Reference(kind, named.get("name", "")), named, found)
    raise VariableError(f"variable {variable['name']}: its source is not known here")


def _key(pod: Object, reference: Reference, named: Object, found: Found) -> str | None:
    optional = bool(named.get("optional"))
    if reference not in found:
        if optional:
            return None
        raise VariableError(reference.missing)
    key = named.get("key", "")
    if key not in found[reference]:
        if optional:
            return None
        where = f"{reference.kind} {pods.namespace(pod)}/{reference.name}"
        raise VariableError(f"couldn't find key {key} in {where}")
    return found[reference][key].decode(errors="replace")


_PLURALS = {"ConfigMap": "configmaps", "Secret": "secrets"}
#: Seconds for which an answer is reused; a pod created later sees a change.
_FRESH_S = 1.0

Content = dict[str, bytes]


class References:
    def __init__(self, client: Client, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._client = client
        self._clock = clock
        self._known: dict[tuple[str, Reference], tuple[float, Content]] = {}

    async def find(self, namespace: str, wanted: Iterable[Reference]) -> dict[Reference, Content]:
        """Return the references that exist, with their content."""
        found: dict[Reference, Content] = {}
        for reference in set(wanted):
            held = await self._one(namespace, reference)
            if held is not None:
                found[reference] = held
        return found

    async def _one(self, namespace: str, reference: Reference) -> Content | None:
        now = self._clock()
        self._known = {k: v for k, v in self._known.items() if now - v[0] < _FRESH_S}
        known = self._known.get((namespace, reference))
        if known is not None:
            return known[1]
        parts = ("namespaces", namespace, _PLURALS[reference.kind], reference.name)
        path = "/".join(urllib.parse.quote(part, safe="") for part in parts)
        try:
            body = await self._client.get(f"/api/v1/{path}")
        except errors.NotFound:
            return None
        obj: Object = codec.decode(body, dict[str, Any], what=reference.kind)
        held = content({**obj, "kind": reference.kind})
        self._known[namespace, reference] = now, held
        return held
