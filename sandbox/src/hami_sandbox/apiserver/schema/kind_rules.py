"""Rules of the kinds of the core group besides pods, and of leases."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from hami_sandbox.apiserver.refusals import Object
from hami_sandbox.apiserver.schema import causes, names, pod_changes, pod_rules, resource_rules
from hami_sandbox.apiserver.schema.causes import Cause

_MOST_DATA = 1024 * 1024
_EFFECTS = ("NoSchedule", "PreferNoSchedule", "NoExecute")
_SERVICES = ("ClusterIP", "ExternalName", "LoadBalancer", "NodePort")
_TLS = "kubernetes.io/tls"
_LAST_PORT = 65535


def pod(obj: Object, old: Object | None) -> Iterator[Cause]:
    yield from pod_rules.spec(obj.get("spec") or {})
    if old is not None:
        yield from pod_changes.check(obj.get("spec") or {}, old.get("spec") or {})


def node(obj: Object, _: Object | None) -> Iterator[Cause]:
    for part in ("capacity", "allocatable"):
        found = (obj.get("status") or {}).get(part) or {}
        yield from resource_rules.amounts(found, f"status.{part}", dotted=True)
    seen: set[tuple[str, str]] = set()
    for place, taint in enumerate((obj.get("spec") or {}).get("taints") or ()):
        field = f"metadata.taints[{place}]"  # so the API server names it
        key, effect = taint.get("key", ""), taint.get("effect", "")
        for wrong in names.qualified(key):
            yield causes.invalid(f"{field}.key", key, wrong)
        if not effect:
            yield causes.required(f"{field}.effect")
        elif effect not in _EFFECTS:
            yield causes.unsupported(f"{field}.effect", effect, _EFFECTS)
        if (key, effect) in seen:
            told = "taints must be unique by key and effect pair"
            repeated = causes.duplicate(field, taint)
            yield Cause(field, repeated.reason, f"{repeated.message}: {told}")
        seen.add((key, effect))


def config_map(obj: Object, old: Object | None) -> Iterator[Cause]:
    data, blobs = obj.get("data") or {}, obj.get("binaryData") or {}
    yield from _keys(data, "data")
    yield from _keys(blobs, "binaryData")
    for key in data.keys() & blobs.keys():
        yield causes.invalid(f"data[{key}]", key, "duplicate of key present in binaryData")
    yield from _size((*data.items(), *blobs.items()))
    if old is not None:
        yield from _immutable(obj, old, "data", "binaryData")


def secret(obj: Object, old: Object | None) -> Iterator[Cause]:
    data = obj.get("data") or {}
    yield from _keys(data, "data")
    yield from _size(data.items())
    if obj.get("type") == _TLS:
        for key in ("tls.crt", "tls.key"):
            if key not in data:
                yield causes.required(f"data[{key}]")
    if old is not None:
        if obj.get("type") != old.get("type"):
            yield causes.immutable("type", obj.get("type", ""))
        yield from _immutable(obj, old, "data")


def event(obj: Object, _: Object | None) -> Iterator[Cause]:
    field = "regarding" if "regarding" in obj else "involvedObject"
    about = (obj.get(field) or {}).get("namespace") or ""
    own = obj["metadata"].get("namespace") or ""
    fits = own in {"", "default"} if not about else own == about
    if not fits:
        yield causes.invalid(f"{field}.namespace", about, "does not match event.namespace")


def lease(obj: Object, _: Object | None) -> Iterator[Cause]:
    spec = obj.get("spec") or {}
    seconds, transitions = spec.get("leaseDurationSeconds"), spec.get("leaseTransitions")
    if seconds is not None and seconds <= 0:
        yield causes.invalid("spec.leaseDurationSeconds", seconds, "must be greater than 0")
    if transitions is not None and transitions < 0:
        told = "must be greater than or equal to 0"
        yield causes.invalid("spec.leaseTransitions", transitions, told)


def quota(obj: Object, old: Object | None) -> Iterator[Cause]:
    spec = obj.get("spec") or {}
    yield from resource_rules.amounts(spec.get("hard") or {}, "spec.hard")
    for part in ("hard", "used"):
        found = (obj.get("status") or {}).get(part) or {}
        yield from resource_rules.amounts(found, f"status.{part}")
    if old is not None and spec.get("scopes") != (old.get("spec") or {}).get("scopes"):
        yield causes.immutable("spec.scopes", spec.get("scopes"))


def service(obj: Object, old: Object | None) -> Iterator[Cause]:
    spec = obj.get("spec") or {}
    kind = spec.get("type", "")
    if kind not in _SERVICES:
        yield causes.unsupported("spec.type", kind, _SERVICES)
    if kind == "ExternalName" and not spec.get("externalName"):
        yield causes.required("spec.externalName")
    ports = spec.get("ports") or ()
    if not ports and spec.get("clusterIP") != "None" and kind != "ExternalName":
        yield causes.required("spec.ports")
    for place, port in enumerate(ports):
        number = port.get("port", 0)
        if not 0 < number <= _LAST_PORT:
            told = "must be between 1 and 65535, inclusive"
            yield causes.invalid(f"spec.ports[{place}].port", number, told)
        if len(ports) > 1 and not port.get("name"):
            yield causes.required(f"spec.ports[{place}].name")
    before = (old or {}).get("spec") or {}
    address = before.get("clusterIP")
    if address and kind == before.get("type") and spec.get("clusterIP") != address:
        told = "may not change once set"
        yield causes.invalid("spec.clusterIPs[0]", spec.get("clusterIP"), told)


def _keys(data: Object, field: str) -> Iterator[Cause]:
    for key in data:
        for wrong in names.data_key(key):
            yield causes.invalid(f"{field}[{key}]", key, wrong)


def _size(items: Iterable[tuple[str, str]]) -> Iterator[Cause]:
    total = sum(len(key) + len(value.encode()) for key, value in items)
    if total > _MOST_DATA:
        yield causes.too_long("", _MOST_DATA)


def _immutable(obj: Object, old: Object, *parts: str) -> Iterator[Cause]:
    if not old.get("immutable"):
        return
    told = "field is immutable when `immutable` is set"
    for part in ("immutable", *parts):
        if obj.get(part) != old.get(part):
            yield causes.forbidden(part, told)
