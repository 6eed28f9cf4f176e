"""A container's variables: values, references to the pod, to config maps and to secrets.

Pure: the config maps and secrets that `wanted` names are looked up by the caller.
"""

from __future__ import annotations

import re
from base64 import b64decode
from collections.abc import Iterator, Mapping

import msgspec

from hami_sandbox.kubelet import downward
from hami_sandbox.kubelet import pod as pods
from hami_sandbox.kubelet.downward import NodeFacts
from hami_sandbox.kubelet.expansion import expand
from hami_sandbox.kubelet.pod import Object

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


#: What there is of those that were looked up: key to content.
Found = Mapping[Reference, Mapping[str, bytes]]


class VariableError(ValueError):
    """The variables cannot be made; the text is kubelet's."""


def content(obj: Object) -> dict[str, bytes]:
    """Return what a config map or a secret holds."""
    if obj.get("kind") == "Secret":
        return {key: b64decode(value) for key, value in (obj.get("data") or {}).items()}
    texts = {key: str(value).encode() for key, value in (obj.get("data") or {}).items()}
    return texts | {key: b64decode(value) for key, value in (obj.get("binaryData") or {}).items()}


def wanted(container: Object) -> Iterator[Reference]:
    """Yield what the variables of a container refer to."""
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
            # What is no name of a variable is left out, as kubelet does.
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
            return downward.field(pod, field.get("fieldPath", ""), node)
        if amount := source.get("resourceFieldRef"):
            return downward.resource(pod, container, amount, node)
    except downward.FieldError as error:
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
