"""Pods on simulated nodes, as kubelet and agent would report them.

A bound pod runs at once, until it is deleted. It has no process.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Set as AbstractSet
from typing import NoReturn

from hami.kube import errors, paths
from hami.kube.client import Client
from hami.kube.informer import Reflector
from hami.kube.store import Cache, all_of
from hami.wire import annotation_keys, codec, objects
from hami_sandbox import api_objects

_log = logging.getLogger(__name__)

_RUNNING = "Running"
_AGAIN_S = 1.0


class FleetPods:
    def __init__(self, client: Client, nodes: AbstractSet[str]) -> None:
        self._client = client
        self._nodes = nodes
        self._cache: Cache[objects.Pod] = Cache()
        self._cache.subscribe(self._changed)
        self._queue: asyncio.Queue[str] = asyncio.Queue()
        self._reflector = Reflector(
            client,
            paths.pods(),
            decode=all_of(objects.Pod, "pod"),
            sink=self._cache,
            kind="pods of simulated nodes",
        )

    async def run(self) -> NoReturn:
        async with asyncio.TaskGroup() as group:
            group.create_task(self._reflector.run())
            while True:
                uid = await self._queue.get()
                group.create_task(self._handle(uid))

    def _changed(self, _old: objects.Pod | None, new: objects.Pod | None) -> None:
        if new is None or new.node_name not in self._nodes:
            return
        ending = new.metadata is not None and new.metadata.deletion_timestamp is not None
        if ending or (new.phase != _RUNNING and not new.finished):
            self._queue.put_nowait(new.uid)

    async def _handle(self, uid: str) -> None:
        pod = self._cache.by_uid(uid)
        if pod is None:
            return
        try:
            if pod.metadata is not None and pod.metadata.deletion_timestamp is not None:
                await self._end(pod)
            elif pod.phase != _RUNNING:
                await self._begin(pod)
        except (errors.NotFound, errors.Conflict):
            pass  # it is deleted, or another pod has its name: the watch will show it
        except errors.KubeError as error:
            _log.warning("cannot write a simulated pod's status", extra={"error": str(error)})
            await asyncio.sleep(_AGAIN_S)
            self._queue.put_nowait(uid)

    async def _begin(self, pod: objects.Pod) -> None:
        path = paths.pods(pod.namespace, pod.name)
        granted = {"annotations": {annotation_keys.BIND_PHASE: "success"}, "uid": pod.uid}
        await self._client.patch(path, codec.encode({"metadata": granted}))
        await self._client.patch(f"{path}/status", codec.encode(_running(pod)))

    async def _end(self, pod: objects.Pod) -> None:
        body = {"gracePeriodSeconds": 0, "preconditions": {"uid": pod.uid}}
        await self._client.delete(paths.pods(pod.namespace, pod.name), codec.encode(body))


def _running(pod: objects.Pod) -> dict[str, object]:
    now = api_objects.stamp(api_objects.now())
    conditions = [
        {"type": kind, "status": "True", "lastTransitionTime": now}
        for kind in ("Initialized", "Ready", "ContainersReady", "PodScheduled")
    ]
    containers = [
        {
            "name": container.name,
            "ready": True,
            "started": True,
            "restartCount": 0,
            "image": "simulated",
            "imageID": "",
            "state": {"running": {"startedAt": now}},
        }
        for kind, container in pod.containers()
        if kind is objects.ContainerKind.APP
    ]
    return {
        "metadata": {"uid": pod.uid},
        "status": {
            "phase": _RUNNING,
            "startTime": now,
            "hostIP": "127.0.0.1",
            "podIP": "127.0.0.1",
            "conditions": conditions,
            "containerStatuses": containers,
        },
    }
