"""Count and explain pods that kubelet rejected; remove those that were replaced.

The leader writes one event on each, a few a second, so that a storm of them leaves room for other
events. The event's name is made of the pod's UID: a replica that leads after another one writes
none a second time.

With `--remove-rejected` the leader also deletes a rejected pod once its controller has made another
one. It lists the pods of the namespace to find that one, and the deletion names UID and version of
the pod that it has read. A pod without a controller is never deleted, nor one that another plugin
than ours has failed (`hami.scheduler.rejections`).
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections import Counter
from collections.abc import Callable

import msgspec

from hami.kube import errors, listwatch, paths
from hami.kube.client import Client
from hami.kube.transport import Backoff, TokenBucket
from hami.scheduler import rejections
from hami.scheduler.events import PodEvents
from hami.scheduler.informers import WatchedCluster
from hami.scheduler.metrics import Metrics
from hami.scheduler.readiness import Readiness
from hami.scheduler.watched import WatchedPod
from hami.wire import codec, objects
from hami.wire import errors as wire_errors

_log = logging.getLogger(__name__)

ROUND_S = 1.0
#: Events a round.
EXPLAINED = 5
#: Seconds from the first sight of a rejected pod to its deletion: its controller needs some.
SETTLED_S = 10.0
#: Deletions a second, and at once.
RATE, BURST = 5.0, 50
_TIMEOUT_S = 10.0
#: Seconds until a namespace is looked at again, at first and after many times.
_AGAIN_S, _AT_MOST_S = 10.0, 300.0


class _RejectedPod(msgspec.Struct):
    pod: WatchedPod
    #: When it was first seen, by our clock.
    seen: float
    explained: bool = False


class _Namespace(msgspec.Struct):
    """When to look for replacements in a namespace with rejected pods."""

    try_from: float = -math.inf
    backoff: Backoff = msgspec.field(
        default_factory=lambda: Backoff(first=_AGAIN_S, longest=_AT_MOST_S)
    )


class RejectedPods:
    """The rejected pods that exist; the leader explains and removes them."""

    def __init__(
        self,
        client: Client,
        watched: WatchedCluster,
        pod_events: PodEvents,
        *,
        readiness: Readiness,
        metrics: Metrics,
        removes: bool,
        clock: Callable[[], float],
    ) -> None:
        # Neither waits for the other: removals and binds.
        self._client = client.apart(1)
        self._pod_events = pod_events
        self._readiness = readiness
        self._removed = metrics.removed_pods
        self._removes = removes
        self._clock = clock
        self._bucket = TokenBucket(rate=RATE, burst=BURST, clock=clock)
        self._pods: dict[str, _RejectedPod] = {}
        self._namespaces: dict[str, _Namespace] = {}
        watched.pods.add_handler(self._on_pod)

    def by_cause(self) -> dict[str, int]:
        """Return how many rejected pods exist, by cause."""
        causes = (rejections.UNANSWERED, rejections.REFUSED)
        found = Counter(each.pod.rejection.cause for each in self._pods.values())  # type: ignore[union-attr]
        return {cause: found[cause] for cause in causes}

    async def run(self) -> None:
        while True:
            await asyncio.sleep(ROUND_S)
            await self.run_round()

    async def run_round(self) -> None:
        """Explain some pods, and look for replacements in one namespace."""
        if not self._readiness.ready:
            return
        for rejected in [each for each in self._pods.values() if not each.explained][:EXPLAINED]:
            self._explain(rejected)
        if self._removes and (namespace := self._next_namespace()):
            await self._remove(namespace)

    def _on_pod(self, old: WatchedPod | None, new: WatchedPod | None) -> None:
        if new is None or new.rejection is None:
            if old is not None:
                self._pods.pop(old.uid, None)
            return
        known = self._pods.get(new.uid)
        if known is not None:
            known.pod = new
            return
        self._pods[new.uid] = _RejectedPod(new, self._clock())
        # Soon, also where nothing was replaced for long.
        self._namespaces.pop(new.namespace, None)

    def _explain(self, rejected: _RejectedPod) -> None:
        pod, rejected.explained = rejected.pod, True
        assert pod.rejection is not None
        extra = {"pod": f"{pod.namespace}/{pod.name}", "node": pod.node}
        _log.warning("kubelet rejected a pod", extra=extra | {"cause": pod.rejection.cause})
        message = rejections.explain(pod.rejection, pod.node, removes=self._removes)
        self._pod_events.rejected(pod, message)

    # Removal.

    def _next_namespace(self) -> str:
        """Return a namespace with pods that may have been replaced by now, or empty."""
        now = self._clock()
        names = {each.pod.namespace for each in self._pods.values() if self._is_candidate(each)}
        self._namespaces = {name: self._namespaces.get(name, _Namespace()) for name in names}
        due = [name for name, state in self._namespaces.items() if state.try_from <= now]
        # That which has waited longest: one that fails takes no other's turn.
        return min(due, key=lambda name: self._namespaces[name].try_from, default="")

    def _is_candidate(self, rejected: _RejectedPod) -> bool:
        rejection = rejected.pod.rejection
        assert rejection is not None
        settled = rejected.explained and self._clock() - rejected.seen >= SETTLED_S
        return settled and rejection.is_replaced and not rejected.pod.deleting

    async def _remove(self, namespace: str) -> None:
        state = self._namespaces[namespace]
        state.try_from = self._clock() + state.backoff.next()
        candidates = {
            uid
            for uid, each in self._pods.items()
            if each.pod.namespace == namespace and self._is_candidate(each)
        }
        try:
            found = rejections.replaced(candidates, await self._list(namespace))
            for pod in found:
                if not self._readiness.ready or not self._bucket.try_take():
                    break  # the rest in the next rounds
                await self._delete(pod)
            if found:
                self._namespaces[namespace] = _Namespace(self._clock() + ROUND_S)
        except (errors.KubeError, wire_errors.WireError) as error:
            self._removed.labels("failed").inc()
            _log.warning(
                "cannot remove rejected pods yet, retrying",
                extra={"namespace": namespace, "error": str(error)},
            )

    async def _list(self, namespace: str) -> list[objects.Pod]:
        pods: list[objects.Pod] = []
        async for page in listwatch.pages(self._client, paths.pods(namespace), {}):
            if page.first:
                pods.clear()
            pods += [codec.decode(body, objects.Pod, what="pod") for body in page.items]
            await asyncio.sleep(0)
        return pods

    async def _delete(self, pod: objects.Pod) -> None:
        assert pod.metadata is not None
        only = {"uid": pod.uid, "resourceVersion": pod.metadata.resource_version}
        body = {"apiVersion": "v1", "kind": "DeleteOptions", "preconditions": only}
        path = paths.pods(pod.namespace, pod.name)
        try:
            await self._client.delete(path, codec.encode(body), timeout=_TIMEOUT_S)
        except (errors.NotFound, errors.Conflict):
            return  # deleted by others, or written since it was read: the next look decides
        self._removed.labels("removed").inc()
        _log.info("removed a rejected pod", extra={"pod": f"{pod.namespace}/{pod.name}"})
