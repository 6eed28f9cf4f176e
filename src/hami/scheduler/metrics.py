"""What the scheduler process counts about itself.

The cluster-wide families (cards, shares, quotas) are written by `hami.scheduler.cluster_metrics`;
these are the process's own: how long the verbs take and how they end, what waits, whether it
leads, and whether its state agrees with the API server's.
"""

from __future__ import annotations

import importlib.metadata

from hami.serving import metrics

_QUEUE_S = (0.001, 0.01, 0.1, 0.5, 1, 2, 5, 10, 30, 60, 120, 300, 600)
_NODES = (1, 10, 100, 500, 1000, 2000, 5000, 10000, 20000)


class Metrics:
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
        self.waiting_pods = make.gauge(
            "hami_scheduler_waiting_pods", "Pods that no node could take when last asked."
        )
        self.bypassed_pods = make.gauge(
            "hami_scheduler_bypassed_pods",
            "Pods on nodes that ask for cards and were not placed by us; must be 0.",
        )
        self.drift = make.gauge(
            "hami_scheduler_drift",
            "Differences between the kept state and the API server's, found and mended; must be 0.",
            ("kind",),
        )
        self.leading = make.gauge("hami_scheduler_leading", "1 while this replica may bind.")
        self.ready = make.gauge("hami_scheduler_ready", "1 while this replica can schedule.")
        self.wake_ups = make.gauge(
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
        self.certificate_days = make.gauge(
            "hami_scheduler_certificate_days", "Days until the serving certificate expires."
        )
