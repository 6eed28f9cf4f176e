"""Objects to create, as small as the API allows, and a few ways to read answers."""

from __future__ import annotations

import contextlib
import datetime as dt
from collections.abc import Iterator
from typing import Any

import pytest

from tests.kubeapi.client import ApiError, Client, Event, Object
from tests.kubeapi.paths import pods

#: Seconds of the longest watch that is waited for to its end.
LONGEST_S = 16


def meta(name: str, **fields: object) -> Object:
    return {"name": name, **fields}


def config_map(name: str, data: dict[str, str] | None = None, **metadata: object) -> Object:
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": meta(name, **metadata),
        "data": data or {},
    }


def lease(name: str, holder: str = "nobody", **metadata: object) -> Object:
    """Return the plainest object that no controller adds to a namespace by itself."""
    return {
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": meta(name, **metadata),
        "spec": {"holderIdentity": holder},
    }


def container(name: str = "main", **fields: object) -> Object:
    return {"name": name, "image": "registry.invalid/none:1", **fields}


def pod(name: str, spec: Object | None = None, **metadata: object) -> Object:
    """Return a pod that no scheduler takes: the tests bind it themselves."""
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": meta(name, **metadata),
        "spec": {
            "schedulerName": "nobody.conformance",
            "automountServiceAccountToken": False,
            "containers": [container()],
            **(spec or {}),
        },
    }


def node(name: str, **metadata: object) -> Object:
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": meta(name, **metadata),
        # NoSchedule keeps others' pods away; NoExecute would drive out the ones that a test binds.
        "spec": {"taints": [{"key": "hami.io/conformance", "effect": "NoSchedule"}]},
    }


def ready_node_status() -> Object:
    now = dt.datetime.now(dt.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return {
        "capacity": {"cpu": "8", "memory": "16Gi", "pods": "110"},
        "allocatable": {"cpu": "8", "memory": "16Gi", "pods": "110"},
        "conditions": [
            {
                "type": "Ready",
                "status": "True",
                "reason": "Conformance",
                "message": "no kubelet stands behind this node",
                "lastHeartbeatTime": now,
                "lastTransitionTime": now,
            }
        ],
    }


def binding(pod_name: str, node_name: str, **metadata: object) -> Object:
    return {
        "apiVersion": "v1",
        "kind": "Binding",
        "metadata": meta(pod_name, **metadata),
        "target": {"apiVersion": "v1", "kind": "Node", "name": node_name},
    }


def bind(api: Client, namespace: str, name: str, node_name: str, **metadata: object) -> Object:
    return api.create(pods(namespace, name, "binding"), binding(name, node_name, **metadata))


def names(answer: Object) -> list[str]:
    """Return the names of a list's items, in its order."""
    return [item["metadata"]["name"] for item in answer["items"]]


def revision(answer: Object) -> str:
    """Return the resourceVersion of an object or of a list."""
    found: str = answer["metadata"]["resourceVersion"]
    return found


def summary(events: list[Object]) -> list[tuple[str, str]]:
    """Return type and object name of watch events."""
    return [(event["type"], event["object"]["metadata"].get("name", "")) for event in events]


def watched_to_the_end(
    api: Client, path: str, query: dict[str, str], seconds: int
) -> tuple[list[Event], Object]:
    """Create a lease while a watch is open; return the watch's events to its end, and the lease.

    On a busy machine its time may be over before the lease is created. Then once more, with more
    time and another lease.
    """
    while True:
        with api.watch(path, timeout_seconds=seconds, query=query) as watch:
            made = api.create(path, lease(f"within-{seconds}s", labels={"k": "v"}))
            events = list(watch)
        if summary(events)[:1] == [("ADDED", made["metadata"]["name"])] or seconds > LONGEST_S:
            return events, made
        seconds *= 4
        query = {**query, "resourceVersion": revision(made)}


def causes(error: ApiError) -> dict[str, str]:
    """Return what the server found wrong: field to reason."""
    found: list[dict[str, Any]] = error.body.get("details", {}).get("causes", [])
    return {cause.get("field", ""): cause.get("reason", "") for cause in found}


class Refusal:
    """The error that a `refused` block ended with; there once the block is left."""

    error: ApiError

    @property
    def message(self) -> str:
        return self.error.message


@contextlib.contextmanager
def refused(status: int, reason: str) -> Iterator[Refusal]:
    """Expect the server to refuse with exactly this status and reason."""
    refusal = Refusal()
    with pytest.raises(ApiError) as caught:
        yield refusal
    refusal.error = caught.value
    assert (caught.value.status, caught.value.reason) == (status, reason), str(caught.value)
    assert caught.value.body["code"] == status
    assert caught.value.body["status"] == "Failure"
