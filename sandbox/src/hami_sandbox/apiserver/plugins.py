"""What kube-apiserver's own admission does to new objects: namespaces, accounts, priorities."""

from __future__ import annotations

import asyncio

from hami_sandbox.apiserver.kind import Kind
from hami_sandbox.apiserver.refusals import Object, Refusal, forbidden, not_found
from hami_sandbox.apiserver.schema import defaults
from hami_sandbox.apiserver.store import Store

#: How often, and how long apart, a pod's account is looked for: a controller may just be at it.
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
    """Refuse new objects where their namespace is not there, or about to go."""
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
