"""One attempt to place a pod: check nodes, ask extenders, choose, bind.

Pods are tried one after the other, each against the cluster with all earlier decisions. Bindings
run in the background and side by side, because some take long.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter

from hami.kube import errors, paths
from hami.kube.client import Client
from hami.wire import codec, objects
from hami_sandbox.kube_scheduler import events, surveys
from hami_sandbox.kube_scheduler.cluster_view import ClusterState
from hami_sandbox.kube_scheduler.events import PodRecorder
from hami_sandbox.kube_scheduler.extenders import ExtenderError, Extenders
from hami_sandbox.kube_scheduler.nodes import Row
from hami_sandbox.kube_scheduler.pods import Pod
from hami_sandbox.kube_scheduler.queue import Entry, Queue

_log = logging.getLogger(__name__)


class UnfitError(Exception):
    """No node fits."""


class Attempts:
    def __init__(
        self,
        client: Client,
        *,
        cluster: ClusterState,
        queue: Queue,
        extenders: Extenders,
        recorder: PodRecorder,
    ) -> None:
        self._client = client
        self._cluster = cluster
        self._queue = queue
        self._extenders = extenders
        self._recorder = recorder
        self._turn = 0
        self._binding: set[asyncio.Task[None]] = set()

    async def try_one(self, entry: Entry) -> None:
        """Find a node for a pod and start to bind it, or put it back and report why."""
        try:
            row = await self._find(entry.pod)
        except UnfitError as error:
            self._failed(entry, str(error), error=False)
            return
        except ExtenderError as error:
            self._failed(entry, str(error), error=True)
            return
        # An error with this pod must not stop the others.
        except Exception as error:  # noqa: BLE001 - logged with its traceback
            _log.exception("attempt failed", extra={"pod": entry.pod.key})
            self._failed(entry, f"{type(error).__name__}: {error}", error=True)
            return
        if entry.out:
            return  # deleted, or placed by another scheduler, during the extenders' calls
        self._cluster.assume(entry.pod, row)
        task = asyncio.create_task(self._bind(entry, row.name), name=f"bind {entry.pod.key}")
        self._binding.add(task)
        task.add_done_callback(self._binding.discard)

    async def end(self) -> None:
        """Cancel running bindings; the next scheduler sees their results in the API server."""
        tasks = tuple(self._binding)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _find(self, pod: Pod) -> Row:
        survey = self._cluster.survey(pod)
        nodes, scores = survey.nodes, survey.scores
        if not nodes:
            raise UnfitError(events.NO_NODES)
        fitting, reasons = self._near(pod, list(survey.fitting.values()))
        reasons += survey.against
        if fitting:
            fitting, refused = await self._extenders.filter(pod, fitting)
            reasons += refused
        if not fitting:
            raise UnfitError(events.unfit(nodes, reasons, may_preempt=pod.priority > 0))
        points = await self._extenders.points(pod, fitting) if len(fitting) > 1 else Counter[str]()
        self._turn += 1
        chosen = surveys.best(fitting, scores, points, turn=self._turn)
        if chosen.node is None:
            raise ExtenderError(f'node "{chosen.name}" not found')
        return chosen

    def _near(self, pod: Pod, rows: list[Row]) -> tuple[list[Row], Counter[str]]:
        """Return the nodes that pod affinity allows, and the reasons against the others."""
        against: Counter[str] = Counter()
        neighbours = self._cluster.neighbours(pod)
        if neighbours is None:
            return rows, against
        fitting: list[Row] = []
        for row in rows:
            reason = neighbours.why_not(row.node) if row.node is not None else ""
            if reason:
                against[reason] += 1
            else:
                fitting.append(row)
        return fitting, against

    async def _bind(self, entry: Entry, node: str) -> None:
        pod = entry.pod
        extra = {"pod": pod.key, "uid": pod.uid, "node": node}
        try:
            if not await self._extenders.bind(pod, node):
                await self._bind_ourselves(pod, node)
        except (ExtenderError, errors.KubeError) as error:
            why = str(error)
            if isinstance(error, errors.KubeError):
                why = events.binding_refused(getattr(error, "message", why))
            _log.warning("not bound", extra={**extra, "error": why})
            self._cluster.forget(pod.uid)
            self._failed(entry, why, error=True)
            return
        _log.info("bound", extra=extra)
        self._cluster.bound(pod.uid)
        self._queue.remove(pod.uid)
        self._recorder.placed(pod, node)

    async def _bind_ourselves(self, pod: Pod, node: str) -> None:
        binding = objects.binding(
            name=pod.name, namespace=pod.namespace, uid=pod.uid, node=node, annotations={}
        )
        path = paths.binding(pod.namespace, pod.name)
        await self._client.create(path, codec.encode(binding))

    def _failed(self, entry: Entry, message: str, *, error: bool) -> None:
        if entry.out:
            return
        extra = {"pod": entry.pod.key, "attempt": entry.attempts, "why": message}
        _log.info("not placed", extra=extra)
        self._recorder.failed(entry.pod, message, error=error)
        self._queue.failed(entry, error=error)
