"""What a new cluster has before anybody wrote anything."""

from __future__ import annotations

import datetime as dt

from hami_sandbox.apiserver import kinds, preparation
from hami_sandbox.apiserver.auth import roles
from hami_sandbox.apiserver.refusals import Object
from hami_sandbox.apiserver.schema import defaults
from hami_sandbox.apiserver.store import Store
from hami_sandbox.apiserver.writes import copied

_NAMESPACES = ("default", "kube-node-lease", "kube-public", "kube-system")
_PRIORITIES = {"system-cluster-critical": 2_000_000_000, "system-node-critical": 2_000_001_000}


def fill(store: Store) -> None:
    """Store what is missing of it."""
    now = dt.datetime.now(dt.UTC)
    for wish in (*map(_namespace, _NAMESPACES), *roles.STORED, *map(_priority, _PRIORITIES)):
        content = copied(wish)
        kind = kinds.of(content["apiVersion"], content["kind"])
        assert kind is not None
        if store.table(kind.stored).get("", content["metadata"]["name"]) is not None:
            continue  # a snapshot had it
        defaults.apply_defaults(kind, content, now=now)
        preparation.identify(kind, content, now=now)
        defaults.prepare_create(kind, content, now=now)
        store.put(kind.stored, content, over=0)


def _namespace(name: str) -> Object:
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}


def _priority(name: str) -> Object:
    return {
        "apiVersion": "scheduling.k8s.io/v1",
        "kind": "PriorityClass",
        "metadata": {"name": name},
        "value": _PRIORITIES[name],
        "description": "Used for system critical pods that must not be moved.",
    }
