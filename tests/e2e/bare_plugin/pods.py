"""The pods of one node by UID, as the API server has them.

kubelet tells a plugin UIDs only, and the API finds pods by name, so the node's pods are listed; a
UID that is already known costs nothing, because what we read of a pod never changes.
"""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Mapping
from typing import Any, Protocol

PATH = "/api/v1/pods"


class Api(Protocol):
    """What we need of tests.kubeapi.client.Client."""

    def get(self, path: str, **query: str | float) -> dict[str, Any]: ...


@dataclasses.dataclass(frozen=True)
class Pod:
    name: str
    """`namespace/name`."""
    limits: Mapping[str, Mapping[str, str]]
    """The resource limits of each container by its name, init containers included."""


class Pods:
    def __init__(self, api: Api, node: str) -> None:
        self._api = api
        self._node = node
        self._known: dict[str, Pod] = {}
        self._asking = threading.Lock()

    def find(self, uid: str) -> Pod | None:
        with self._asking:  # a burst of starts needs one answer, not one each
            if uid not in self._known:
                self._ask()
            return self._known.get(uid)

    def uids(self) -> frozenset[str]:
        """Return the UIDs of all pods that are on the node now."""
        with self._asking:
            self._ask()
            return frozenset(self._known)

    def _ask(self) -> None:
        answer = self._api.get(PATH, fieldSelector=f"spec.nodeName={self._node}")
        self._known = {pod["metadata"]["uid"]: _pod(pod) for pod in answer["items"]}


def _pod(pod: Mapping[str, Any]) -> Pod:
    containers = [*pod["spec"].get("initContainers", ()), *pod["spec"]["containers"]]
    return Pod(
        f"{pod['metadata']['namespace']}/{pod['metadata']['name']}",
        {one["name"]: one.get("resources", {}).get("limits", {}) for one in containers},
    )
