"""Every call that writes a pod's metadata: writer, pod, change.

What is written is a part of `metadata`, where None removes a key.
"""

from __future__ import annotations

import copy

from tests.e2e.cluster.images import BUSYBOX
from tests.kubeapi.client import MERGE_PATCH, Client, Object
from tests.kubeapi.paths import core, pods

APPLY = "application/apply-patch+yaml"
STRATEGIC = "application/strategic-merge-patch+json"
_DEBUGGER = {"ephemeralContainers": [{"name": "debugger", "image": BUSYBOX}]}
_MORE = {"containers": [{"name": "main", "resources": {"limits": {"cpu": "20m"}}}]}


def path_of(pod: Object, sub: str | None = None) -> str:
    return pods(pod["metadata"]["namespace"], pod["metadata"]["name"], sub)


def patch(client: Client, pod: Object, change: Object) -> Object:
    return client.patch(path_of(pod), {"metadata": change}, MERGE_PATCH)


def replace(client: Client, pod: Object, change: Object) -> Object:
    body = copy.deepcopy(pod)
    del body["metadata"]["resourceVersion"]  # whatever happened to the pod meanwhile
    for field, values in change.items():
        merged = body["metadata"].get(field, {}) | values
        body["metadata"][field] = {key: value for key, value in merged.items() if value is not None}
    return client.replace(path_of(pod), body)


def apply(client: Client, pod: Object, change: Object) -> Object:
    """Apply with force, so that no other owner of a field stands in the way."""
    meta = {"name": pod["metadata"]["name"], **change}
    body = {"apiVersion": "v1", "kind": "Pod", "metadata": meta}
    return client.patch(path_of(pod), body, APPLY, fieldManager="applier", force=True)


def status(client: Client, pod: Object, change: Object) -> Object:
    return client.patch(path_of(pod, "status"), {"metadata": change}, MERGE_PATCH)


def ephemeral_containers(client: Client, pod: Object, change: Object) -> Object:
    body = {"metadata": change, "spec": _DEBUGGER}
    return client.patch(path_of(pod, "ephemeralcontainers"), body, STRATEGIC)


def resize(client: Client, pod: Object, change: Object) -> Object:
    body = {"metadata": change, "spec": _MORE}
    return client.patch(path_of(pod, "resize"), body, STRATEGIC)


def bind(client: Client, pod: Object, change: Object, *, node: str) -> Object:
    return client.create(path_of(pod, "binding"), _binding(pod, change, node))


def bind_the_old_way(client: Client, pod: Object, change: Object, *, node: str) -> Object:
    """Bind through the resource that was there before pods had a subresource for it."""
    return client.create(
        core("bindings", pod["metadata"]["namespace"]), _binding(pod, change, node)
    )


def _binding(pod: Object, change: Object, node: str) -> Object:
    return {
        "apiVersion": "v1",
        "kind": "Binding",
        "metadata": {"name": pod["metadata"]["name"], **change},
        "target": {"apiVersion": "v1", "kind": "Node", "name": node},
    }
