"""Pods that an administrator binds without the scheduler, with any grant.

Admission refuses to create a pod with a grant; a Binding brings its annotations along.
"""

from __future__ import annotations

from collections.abc import Mapping

from tests.e2e import pods
from tests.e2e.auditor import pod_annotations
from tests.e2e.fakegpu import pods as gpu_pods
from tests.kubeapi.client import Client, Object
from tests.kubeapi.paths import pods as pods_path


def create(client: Client, namespace: str, body: Object) -> Object:
    """Create a pod that no scheduler looks at."""
    spec = body["spec"] | {"schedulerName": gpu_pods.SCHEDULER}
    (made,) = pods.create(client, namespace, body | {"spec": spec})
    return made


def bind(client: Client, pod: Object, node: str, annotations: Mapping[str, str]) -> None:
    meta = pod["metadata"]
    body = {
        "apiVersion": "v1",
        "kind": "Binding",
        "metadata": {
            "name": meta["name"],
            "uid": meta["uid"],
            "annotations": {pod_annotations.NODE: node, **annotations},
        },
        "target": {"kind": "Node", "name": node},
    }
    client.create(pods_path(meta["namespace"], meta["name"], "binding"), body)


def granted(devices: str, mac: str = "") -> dict[str, str]:
    """Write a grant as the scheduler does, signed if there is a code for it."""
    signed = {pod_annotations.MAC: mac} if mac else {}
    return {pod_annotations.ALLOCATED: devices, **signed}
