"""A node of HAMi's: kubelet and device plugin in one loop, with its lock.

A pod that was bound here gets its cards only when the lock names it: the plugin writes
`bind-phase=success`, takes the lock away, and the pod runs. Simulated nodes cannot show that, since
their pods run at once, and a pod that runs has its cards.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import threading
from collections.abc import Iterator
from typing import Any

from hami.wire import annotation_keys, node_marks
from tests.e2e.cluster import fleet
from tests.e2e.cluster.cluster import Cluster
from tests.e2e.install import nodes
from tests.kubeapi.client import ApiError, Client, Object
from tests.kubeapi.paths import leases
from tests.kubeapi.paths import nodes as nodes_path
from tests.kubeapi.paths import pods as pods_path

NAME = "hamis-node"
LOOK_S = 0.05
RENEW_EVERY = 100
SELECTOR = {"kubernetes.io/hostname": NAME}


class HamiNode:
    def __init__(self, client: Client) -> None:
        self._client = client
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name=NAME)
        self._failure: BaseException | None = None
        self.served: list[str] = []
        """Names of the pods that got their cards, in order."""

    def start(self) -> None:
        self._thread.start()

    def end(self) -> None:
        self._ended.set()
        self._thread.join()
        if self._failure is not None:
            raise self._failure

    def _run(self) -> None:
        looks = 0
        try:
            while not self._ended.wait(LOOK_S):
                if looks % RENEW_EVERY == 0:
                    self._renew()
                looks += 1
                self._answer_handshake()
                self._serve()
                self._remove_deleted()
        except BaseException as error:  # noqa: BLE001 (the root of a thread: raised by `end`)
            self._failure = error

    def _renew(self) -> None:
        now = f"{dt.datetime.now(dt.UTC):%Y-%m-%dT%H:%M:%S.%f}Z"
        spec = {"holderIdentity": NAME, "leaseDurationSeconds": 40, "renewTime": now}
        body = {"metadata": {"name": NAME}, "spec": spec}
        if self._client.find(leases(nodes.LEASES, NAME)) is None:
            self._client.create(leases(nodes.LEASES), body)
        else:
            self._client.patch(leases(nodes.LEASES, NAME), body)

    def _answer_handshake(self) -> None:
        asked = self._node()["annotations"].get(nodes.KEYS.handshake, "")
        if asked.startswith("Requesting"):
            answer = f"Reported_{dt.datetime.now(dt.UTC):%Y-%m-%d %H:%M:%S}"
            nodes.annotate(self._client, NAME, {nodes.KEYS.handshake: answer})

    def _serve(self) -> None:
        value = self._node()["annotations"].get(annotation_keys.NODE_LOCK)
        if value is None:
            return
        lock = node_marks.decode_lock(value)
        path = pods_path(lock.namespace, lock.name)
        pod = self._client.find(path)
        if pod is None or pod["spec"].get("nodeName") != NAME:
            return  # locked, not bound yet
        success = {annotation_keys.BIND_PHASE: "success", nodes.KEYS.to_allocate: ";"}
        self._client.patch(path, {"metadata": {"annotations": success}})
        self.served.append(lock.name)
        self._release()
        self._client.patch(
            pods_path(lock.namespace, lock.name, "status"), {"status": _running(pod)}
        )

    def _release(self) -> None:
        while True:
            version = self._node()["resourceVersion"]
            free = {"annotations": {annotation_keys.NODE_LOCK: None}, "resourceVersion": version}
            try:
                self._client.patch(nodes_path(NAME), {"metadata": free})
            except ApiError as error:
                if error.reason != "Conflict":
                    raise
            else:
                return

    def _remove_deleted(self) -> None:
        for pod in self._client.get(pods_path(), fieldSelector=f"spec.nodeName={NAME}")["items"]:
            meta = pod["metadata"]
            if "deletionTimestamp" in meta:
                with contextlib.suppress(ApiError):  # somebody was faster
                    path = pods_path(meta["namespace"], meta["name"])
                    self._client.delete(path, gracePeriodSeconds=0)

    def _node(self) -> dict[str, Any]:
        found: dict[str, Any] = self._client.get(nodes_path(NAME))["metadata"]
        return found


@contextlib.contextmanager
def running(cluster: Cluster, *, cards: int = 2) -> Iterator[HamiNode]:
    with cluster.joined_network(), cluster.client as client:
        devices = nodes.cards(NAME, cards)
        ids = {nodes.GPU: str(sum(device.count for device in devices))}
        told = {key: value for key, value in nodes.told(devices, late=False).items() if value}
        body = fleet._node(NAME, fleet.CAPACITY | ids, told)
        del body["metadata"]["labels"][fleet.MARK]  # kwok must leave it alone
        client.create(nodes_path(), body)
        node = HamiNode(client)
        node.start()
        try:
            client.patch(nodes_path(NAME), {"spec": {"taints": [fleet.TAINT]}})
            yield node
        finally:
            try:
                node.end()
            finally:
                client.delete(nodes_path(NAME))
                client.delete(leases(nodes.LEASES, NAME))


def _running(pod: Object) -> Object:
    now = f"{dt.datetime.now(dt.UTC):%Y-%m-%dT%H:%M:%SZ}"
    statuses = [
        {
            "name": container["name"],
            "image": container["image"],
            "imageID": "",
            "ready": True,
            "started": True,
            "restartCount": 0,
            "state": {"running": {"startedAt": now}},
        }
        for container in pod["spec"]["containers"]
    ]
    return {"phase": "Running", "startTime": now, "containerStatuses": statuses}
