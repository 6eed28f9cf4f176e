"""Metrics of the scheduler process, and the route of /metrics.

`Metrics` are the process's own: how long the verbs take and how they end, unschedulable pods,
leadership, and whether its state agrees with the API server's. The metrics of the whole cluster
(cards, shares, quotas) are written by `hami.scheduler.cluster_metrics`.
"""

from __future__ import annotations

import collections
import importlib.metadata
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Protocol

import msgspec

from hami.kube import events
from hami.kube.events import EventRecorder
from hami.kube.listwatch import Stats
from hami.scheduler import cluster_metrics
from hami.scheduler.assumed_pods import AssumedPods, Stage
from hami.scheduler.events import BypassedPods
from hami.scheduler.grants import UnprovenPods
from hami.scheduler.informers import WatchedCluster
from hami.scheduler.leadership import Leadership
from hami.scheduler.maintenance import Maintenance
from hami.scheduler.readiness import Readiness
from hami.scheduler.requeue import Requeue
from hami.scheduler.settings import Settings
from hami.scheduler.unschedulable import UnschedulablePods
from hami.serving import metrics, watchdog
from hami.serving.certificates import LiveCertificate
from hami.serving.http_server import Request, Response, Route

_QUEUE_S = (0.001, 0.01, 0.1, 0.5, 1, 2, 5, 10, 30, 60, 120, 300, 600)
_NODES = (1, 10, 100, 500, 1000, 2000, 5000, 10000, 20000)


class Metrics:
    """Histograms and gauges of this process, by their names."""

    def __init__(self) -> None:
        self.registry = metrics.Registry()
        self.registry.build_info(version=importlib.metadata.version("hami"))
        make = self.registry
        self.filter_seconds = make.histogram(
            "hami_scheduler_filter_duration_seconds",
            "Time to answer /filter, by result: placed, refused, passed, error.",
            ("result",),
        )
        self.filter_nodes = make.histogram(
            "hami_scheduler_filter_nodes",
            "Nodes that kube-scheduler asked about per /filter.",
            buckets=_NODES,
        )
        self.bind_seconds = make.histogram(
            "hami_scheduler_bind_duration_seconds",
            "Time to answer /bind, by result: bound, error.",
            ("result",),
        )
        self.queue_seconds = make.histogram(
            "hami_scheduler_bind_queue_wait_seconds",
            "Time that binds waited for the lock of their node.",
            buckets=_QUEUE_S,
        )
        self.reservations = make.gauge(
            "hami_scheduler_reservations", "Pods with reserved cards, by stage.", ("stage",)
        )
        self.unschedulable_pods = make.gauge(
            "hami_scheduler_waiting_pods", "Pods that no node could take when last asked."
        )
        self.bypassed_pods = make.gauge(
            "hami_scheduler_bypassed_pods",
            "Pods on nodes that ask for cards and were not placed by us; must be 0.",
        )
        self.unproven_pods = make.gauge(
            "hami_scheduler_pods_without_valid_grant",
            "Pods on nodes that ask for cards and whose grant is missing or not valid; must be 0.",
        )
        self.overusing_pods = make.gauge(
            "hami_scheduler_overusing_pods",
            "Pods that their nodes report with more of a card than they were given; must be 0.",
        )
        self.evictions = make.counter(
            "hami_scheduler_evictions",
            "Evictions of pods, by reason (overuse, refused) and outcome (evicted, blocked by a "
            "budget, failed).",
            ("reason", "outcome"),
        )
        self.rejected_pods = make.gauge(
            "hami_scheduler_rejected_pods",
            "Pods of ours that kubelet has rejected (UnexpectedAdmissionError) and that still "
            "exist, by cause: no agent answered (unanswered), or it refused the pod (refused).",
            ("cause",),
        )
        self.removed_pods = make.counter(
            "hami_scheduler_removed_rejected_pods",
            "Deletions of rejected pods that their controller has replaced, by outcome (removed, "
            "failed).",
            ("outcome",),
        )
        self.drift = make.gauge(
            "hami_scheduler_drift",
            "Differences between the kept state and the API server's, found and mended; must be 0.",
            ("kind",),
        )
        self.leading = make.gauge("hami_scheduler_leading", "1 while this replica may bind.")
        self.ready = make.gauge("hami_scheduler_ready", "1 while this replica can schedule.")
        self.requeues = make.gauge(
            "hami_scheduler_wake_ups", "Nodes touched because a waiting pod fits there now."
        )
        self.events = make.gauge(
            "hami_scheduler_events", "Events by what became of them.", ("outcome",)
        )
        self.watch = make.gauge(
            "hami_scheduler_watch", "What the caches did since start, by kind.", ("kind", "what")
        )
        self.unreadable = make.gauge(
            "hami_scheduler_unreadable_objects",
            "Nodes, pods and quotas of which something cannot be read.",
        )
        self.omitted = make.gauge(
            "hami_scheduler_container_metrics_omitted",
            "Shares of containers without metrics here, by --card-metrics=false or because they "
            "are more than --container-metrics-limit; 0: all have theirs.",
        )
        self.loop = watchdog.Metrics(make, "hami_scheduler")
        self.certificate_days = make.gauge(
            "hami_scheduler_certificate_days", "Days until the serving certificate expires."
        )


class Counted(Protocol):
    """The part of an informer that metrics need."""

    @property
    def stats(self) -> Stats: ...


class MetricsPage:
    """/metrics: gauges are brought up to date for each request, then the cluster is written."""

    def __init__(
        self,
        metrics: Metrics,
        *,
        watched: WatchedCluster,
        assumed_pods: AssumedPods,
        unschedulable: UnschedulablePods,
        requeue: Requeue,
        bypassed: BypassedPods,
        unproven: UnprovenPods,
        overusing: Callable[[], int],
        rejected: Callable[[], Mapping[str, int]],
        maintenance: Maintenance,
        leadership: Leadership,
        readiness: Readiness,
        informers: Mapping[str, Counted],
        recorder: EventRecorder,
        certificate: LiveCertificate | None,
        settings: Settings,
    ) -> None:
        self._metrics = metrics
        self._watched = watched
        self._assumed_pods = assumed_pods
        self._unschedulable = unschedulable
        self._requeue = requeue
        self._bypassed = bypassed
        self._unproven = unproven
        self._overusing = overusing
        self._rejected = rejected
        self._maintenance = maintenance
        self._leadership = leadership
        self._readiness = readiness
        self._informers = informers
        self._recorder = recorder
        self._certificate = certificate
        self._settings = settings

    def route(self) -> Route:
        page = metrics.route(self._metrics.registry, self._cluster)

        async def answer(request: Request) -> Response:
            self._update()
            return await page.handler(request)

        return msgspec.structs.replace(page, handler=answer)

    def _cluster(self) -> AsyncIterator[bytes]:
        return cluster_metrics.families(
            self._watched.cluster,
            legacy=self._settings.legacy_metrics,
            cards=self._settings.card_metrics,
            container_limit=self._settings.container_metrics_limit,
        )

    def _omitted(self) -> int:
        return cluster_metrics.omitted_shares(
            self._watched.cluster,
            cards=self._settings.card_metrics,
            container_limit=self._settings.container_metrics_limit,
        )

    def _update(self) -> None:
        gauges = self._metrics
        stages = collections.Counter(assumed.stage for assumed in self._assumed_pods)
        for stage in Stage:
            if stage is not Stage.OVER:
                gauges.reservations.labels(stage.value).set(stages[stage])
        gauges.unschedulable_pods.set(len(self._unschedulable))
        gauges.bypassed_pods.set(len(self._bypassed))
        gauges.unproven_pods.set(len(self._unproven))
        gauges.overusing_pods.set(self._overusing())
        for cause, count in self._rejected().items():
            gauges.rejected_pods.labels(cause).set(count)
        gauges.requeues.set(self._requeue.sent)
        gauges.leading.set(self._leadership.leading)
        gauges.ready.set(self._readiness.ready)
        gauges.unreadable.set(len(self._watched.cluster.problems()))
        gauges.omitted.set(self._omitted())
        gauges.drift.labels("tables").set(self._maintenance.table_drift)
        for outcome in events.Stats.__struct_fields__:
            gauges.events.labels(outcome).set(getattr(self._recorder.stats, outcome))
        for kind, informer in self._informers.items():
            gauges.drift.labels(kind).set(informer.stats.repaired)
            for what in Stats.__struct_fields__:
                gauges.watch.labels(kind, what).set(getattr(informer.stats, what))
        if self._certificate is not None:
            gauges.certificate_days.set(self._certificate.days_left())
