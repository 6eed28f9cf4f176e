"""Pods whose start was refused again and again.

kubelet tries for ever. After three refusals within two minutes the pod gets an event of ours, and
where the administrator wants that it is evicted: its controller makes a new one, which is placed
anew.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable

from hami.agent.pods import NodePods
from hami.kube import errors, paths
from hami.kube.client import Client
from hami.kube.events import EventRecorder
from hami.wire import codec
from hami.wire.objects import Pod

_log = logging.getLogger(__name__)

REASON = "GPUStartRefused"
_TIMES = 3
_WITHIN = 120.0


class Refusals:
    def __init__(
        self,
        client: Client,
        pods: NodePods,
        events: EventRecorder,
        *,
        evict: bool,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._client = client
        self._pods = pods
        self._events = events
        self._evict = evict
        self._clock = clock
        self._times: dict[str, deque[float]] = {}
        self._evicting: set[asyncio.Task[None]] = set()
        pods.subscribe(self._forget)

    def _forget(self, old: Pod | None, new: Pod | None) -> None:
        if new is None and old is not None:
            self._times.pop(old.uid, None)

    def refused(self, uid: str, message: str) -> None:
        """Take note; the third within two minutes has consequences."""
        pod = self._pods.find(uid)
        if pod is None:
            return  # nobody to tell, and nobody who would be forgotten again
        times = self._times.setdefault(uid, deque(maxlen=_TIMES))
        times.append(self._clock())
        if len(times) < _TIMES or times[-1] - times[0] > _WITHIN:
            return
        times.clear()
        self._events.record(
            namespace=pod.namespace,
            name=pod.name,
            uid=pod.uid,
            type="Warning",
            reason=REASON,
            message=f"refused {_TIMES} times: {message}",
        )
        if self._evict:
            task = asyncio.create_task(self._send_away(pod))
            self._evicting.add(task)
            task.add_done_callback(self._evicting.discard)

    async def _send_away(self, pod: Pod) -> None:
        body = {
            "apiVersion": "policy/v1",
            "kind": "Eviction",
            "metadata": {"name": pod.name, "namespace": pod.namespace},
            "deleteOptions": {"preconditions": {"uid": pod.uid}},
        }
        told = {"pod": f"{pod.namespace}/{pod.name}", "uid": pod.uid}
        try:
            await self._client.create(paths.eviction(pod.namespace, pod.name), codec.encode(body))
        except errors.KubeError as error:
            _log.warning("a refused pod is not evicted", extra={**told, "error": str(error)})
        else:
            _log.info("a refused pod is evicted", extra=told)
