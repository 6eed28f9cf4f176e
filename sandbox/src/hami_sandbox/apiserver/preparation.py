"""Fields that the server sets at a write; built-in admission.

The server sets identity and generated names, and keeps the fields that a write to this path cannot
change. Built-in admission checks namespaces, service accounts and priority classes.
"""

from __future__ import annotations

import asyncio
import datetime as dt
import secrets
import uuid

from hami_sandbox import api_objects
from hami_sandbox.apiserver.kinds import Kind
from hami_sandbox.apiserver.refusals import Object, Refusal, forbidden, not_found
from hami_sandbox.apiserver.schema import defaults
from hami_sandbox.apiserver.store import Store

#: Letters of generated names, Kubernetes' choice: no vowels, no look-alikes.
LETTERS = "bcdfghjklmnpqrstvwxz2456789"
_SUFFIX = 5
_LONGEST_NAME = 63
_FIXED = ("deletionTimestamp", "deletionGracePeriodSeconds")
_FOR_SYSTEM = ("uid", "creationTimestamp", "generation", *_FIXED, "selfLink", "resourceVersion")


def strip(metadata: Object) -> None:
    """Remove metadata that a writer cannot choose from a new object."""
    for field in _FOR_SYSTEM:
        metadata.pop(field, None)


def identify(kind: Kind, content: Object, *, now: dt.datetime) -> None:
    """Give a new object its identity."""
    metadata = content["metadata"]
    strip(metadata)
    metadata["uid"] = str(uuid.uuid4())
    metadata["creationTimestamp"] = api_objects.stamp(now)
    if kind.generation:
        metadata["generation"] = 1


def generated(prefix: str) -> str:
    """Return a name that begins as asked."""
    suffix = "".join(secrets.choice(LETTERS) for _ in range(_SUFFIX))
    return prefix[: _LONGEST_NAME - _SUFFIX] + suffix


def update(kind: Kind, new: Object, old: Object, subresource: str) -> None:
    """Put back what a write of this part of an object cannot change."""
    before, metadata = old["metadata"], new["metadata"]
    for field in (*_FIXED, "generation"):
        metadata.pop(field, None)
        if field in before:
            metadata[field] = before[field]
    for field in ("uid", "creationTimestamp"):
        if not metadata.get(field) and field in before:
            metadata[field] = before[field]
    if subresource == "status":
        _keep_all_but_status(new, old)
    elif subresource == "finalize":
        _keep_all_but_finalizers(new, old)
    else:
        if kind.has_status:
            _take(new, old, "status")
        if (kind.group, kind.resource) == ("", "services"):
            _keep_address(new, old)
        if kind.generation and _counted(new) != _counted(old):
            metadata["generation"] = before.get("generation", 0) + 1


def _keep_all_but_status(new: Object, old: Object) -> None:
    for field in {*new, *old} - {"metadata", "status"}:
        _take(new, old, field)
    status = new.get("status")
    quality = old.get("status", {}).get("qosClass")
    if quality and isinstance(status, dict):
        status.setdefault("qosClass", quality)


def _keep_all_but_finalizers(new: Object, old: Object) -> None:
    finalizers = (new.get("spec") or {}).get("finalizers")
    for field in {*new, *old} - {"metadata"}:
        _take(new, old, field)
    spec = {key: value for key, value in old.get("spec", {}).items() if key != "finalizers"}
    if finalizers:
        spec["finalizers"] = finalizers
    new["spec"] = spec


def _keep_address(new: Object, old: Object) -> None:
    """Leave a service its address, which its writer did not choose."""
    before, spec = old.get("spec", {}), new.setdefault("spec", {})
    if spec.get("type") == before.get("type"):
        for field in ("clusterIP", "clusterIPs"):
            if not spec.get(field) and before.get(field):
                spec[field] = before[field]


def _take(new: Object, old: Object, field: str) -> None:
    if field in old:
        new[field] = old[field]
    else:
        new.pop(field, None)


def _counted(content: Object) -> Object:
    """Return the part whose changes metadata.generation counts."""
    return {key: value for key, value in content.items() if key not in {"metadata", "status"}}


#: Attempts, and seconds between them, to find a pod's account: its controller may be late.
_TRIES = 20
_APART = 0.05
#: Namespaces that cannot be deleted.
IMMORTAL = frozenset(["default", "kube-system", "kube-public"])


async def admit(store: Store, kind: Kind, content: Object, *, namespace: str, name: str) -> None:
    """Complete a new object in place, or refuse it."""
    if kind.namespaced:
        check_namespace(store, kind, namespace, name)
    if (kind.group, kind.resource) == ("", "pods"):
        await _admit_pod(store, content, namespace, name)


def check_namespace(store: Store, kind: Kind, namespace: str, name: str) -> None:
    """Refuse new objects whose namespace does not exist or is being deleted."""
    found = store.find("", "namespaces", "", namespace)
    if found is None:
        raise not_found("namespaces", namespace)
    if "deletionTimestamp" not in found["metadata"]:
        return
    why = "because it is being terminated"
    cause = {
        "reason": "NamespaceTerminating",
        "message": f"namespace {namespace} is being terminated",
        "field": "metadata.namespace",
    }
    raise _refused(
        kind, name, f"unable to create new content in namespace {namespace} {why}", cause
    )


async def _admit_pod(store: Store, pod: Object, namespace: str, name: str) -> None:
    spec = pod.setdefault("spec", {})
    defaults.admit_pod(pod, priority_class=_priority_class(store, spec, name))
    account = spec.get("serviceAccountName") or "default"
    for _ in range(_TRIES):
        if store.find("", "serviceaccounts", namespace, account) is not None:
            return
        await asyncio.sleep(_APART)
    why = f'error looking up service account {namespace}/{account}: serviceaccount "{account}" '
    raise _refused_pod(name, f"{why}not found")


def _priority_class(store: Store, spec: Object, name: str) -> Object | None:
    wanted = spec.get("priorityClassName") or ""
    if not wanted:
        for found in store.all("scheduling.k8s.io", "priorityclasses"):
            if found.get("globalDefault"):
                return found
        return None
    found_one = store.find("scheduling.k8s.io", "priorityclasses", "", wanted)
    if found_one is not None:
        return found_one
    raise _refused_pod(name, f"no PriorityClass with name {wanted} was found")


def _refused_pod(name: str, why: str) -> Refusal:
    return forbidden(f'pods "{name}" is forbidden: {why}', {"name": name, "kind": "pods"})


def _refused(kind: Kind, name: str, why: str, cause: Object) -> Refusal:
    details: Object = {"name": name, "kind": kind.resource, "causes": [cause]}
    if kind.group:
        details["group"] = kind.group
    return forbidden(f'{kind.qualified} "{name}" is forbidden: {why}', details)
