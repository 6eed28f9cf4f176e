"""Leftovers of an installation: all objects of all kinds, before and after.

Kinds are asked of the API server, so a template that brings a new one is looked for as well. Beside
the release's own namespace the cluster-wide kinds count, kube-system, where a scheduler needs a
RoleBinding, and our annotations on nodes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from hami.wire import annotation_keys
from tests.kubeapi.client import Client, Object
from tests.kubeapi.paths import nodes

SYSTEM = "kube-system"
# Events end by themselves; nodes and namespaces come and go with the tests.
_COME_AND_GO = frozenset({"events", "namespaces", "nodes"})


def everything(client: Client, namespace: str) -> set[str]:
    """Name all objects that an installation into the namespace could have made."""
    found = {f"annotation of node {name}" for name in _woken_nodes(client)}
    for path, resource, namespaced in _kinds(client):
        for place in dict.fromkeys((namespace, SYSTEM)) if namespaced else ("",):
            where = f"{path}/namespaces/{place}/{resource}" if place else f"{path}/{resource}"
            listed = client.get(where)
            for one in listed["items"]:
                owner = f" in {place}" if place else ""
                found.add(f"{listed['kind'].removesuffix('List')} {one['metadata']['name']}{owner}")
    return found


def _woken_nodes(client: Client) -> Iterator[str]:
    for node in client.get(nodes())["items"]:
        if annotation_keys.REQUEUE in node["metadata"].get("annotations", {}):
            yield node["metadata"]["name"]


def _kinds(client: Client) -> Iterator[tuple[str, str, bool]]:
    """Yield where the objects of each kind are, the kind, and whether it has namespaces."""
    yield from _of(client, "/api/v1")
    for group in client.get("/apis")["groups"]:
        yield from _of(client, f"/apis/{group['preferredVersion']['groupVersion']}")


def _of(client: Client, path: str) -> Iterator[tuple[str, str, bool]]:
    resources: Iterable[Object] = client.get(path)["resources"]
    for resource in resources:
        name = resource["name"]
        if "list" in resource["verbs"] and "/" not in name and name not in _COME_AND_GO:
            yield path, name, resource["namespaced"]
