"""`hami scheduler`: build the parts and run them.

The servers start first, so that probes are answered; the watches fill the cluster's state; once
they have and this replica leads, requests are answered. On SIGTERM requests under way are
finished, and a Binding that has been sent is always waited for.

Tests build the same `Scheduler` with another clock or another API server.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import socket
import time
from collections.abc import Callable, Coroutine
from typing import Any

from hami.admission import serve as admission_serve
from hami.admission import settings as admission_settings
from hami.admission.mig_offer import MigOffer
from hami.admission.serve import Reviewer
from hami.admission.settings import Rules
from hami.kube import access, listwatch, paths
from hami.kube.client import Client
from hami.kube.events import EventRecorder
from hami.kube.informer import Informer
from hami.scheduler import admission, grants, leadership, readiness
from hami.scheduler.assumed_pods import AssumedPods, LostAnswers
from hami.scheduler.bind import Binder
from hami.scheduler.compat import Handshakes
from hami.scheduler.events import BypassedPods, PodEvents
from hami.scheduler.evictions import Evictions
from hami.scheduler.explain import Explainer
from hami.scheduler.explanation_notes import ExplanationNotes
from hami.scheduler.filter import Filter
from hami.scheduler.grants import UnprovenPods
from hami.scheduler.http_api import HttpApi
from hami.scheduler.informers import WatchedCluster
from hami.scheduler.kube_scheduler import KubeVersion
from hami.scheduler.maintenance import Maintenance
from hami.scheduler.metrics import Metrics, MetricsPage
from hami.scheduler.node_lock import NodeLocks
from hami.scheduler.placer import Placer
from hami.scheduler.precedence import Precedence
from hami.scheduler.preempt import Preemption
from hami.scheduler.readiness import Readiness
from hami.scheduler.requeue import Requeue
from hami.scheduler.settings import Settings
from hami.scheduler.shared_lock import SharedLocks
from hami.scheduler.unschedulable import UnschedulablePods
from hami.serving import addresses, endpoints, lifetime, tracing
from hami.serving.certificates import LiveCertificate
from hami.serving.grant_keys import KeyFolder
from hami.serving.http_server import Route, Server
from hami.serving.watchdog import LoopWatchdog
from hami.vendors import device_config
from hami.wire import objects

_log = logging.getLogger(__name__)

USER_AGENT = "hami-scheduler"
#: Young objects before a collection. Objects decoded from the API server are not tracked at all,
#: and a full collection over a large cluster would delay a request for longer than its decision.
GC_THRESHOLDS = (50_000, 25, 100)


async def run(settings: Settings) -> None:
    """Run until SIGTERM or SIGINT."""
    stop = lifetime.stop_asked()
    config = device_config.load_or_built_in(settings.device_config_file)
    for warning in config.warnings:
        _log.warning("device configuration", extra={"warning": warning})
    rules = admission.rules(settings, config)
    keys = grants.key_folder(settings)
    tracer = tracing.Tracer.from_endpoint(settings.otlp_endpoint, USER_AGENT)
    gc.set_threshold(*GC_THRESHOLDS)
    async with access.client(settings, user_agent=USER_AGENT) as client:
        scheduler = Scheduler(settings, client, rules=rules, keys=keys, tracer=tracer)
        try:
            await _serve(scheduler, stop)
        finally:
            await tracer.close()
    _log.info("stopped")


class Scheduler:
    """All parts of one replica, built in the order in which they need each other."""

    def __init__(
        self,
        settings: Settings,
        client: Client,
        *,
        rules: Rules,
        keys: KeyFolder | None,
        tracer: tracing.Tracer,
        hostname: str = "",
        clock: Callable[[], float] = leadership.boot_time,
        now: Callable[[], float] = time.time,
    ) -> None:
        hostname = hostname or socket.gethostname()
        self.settings = settings
        self.client = client
        self.metrics = Metrics()
        self.certificate = LiveCertificate.from_files(
            settings.cert_file, settings.key_file, settings.client_ca_file
        )
        self.stopping = lifetime.Stopping(settings.shutdown_delay)

        # The cluster's state, and the pods on their way through it.
        plan = rules.fallback
        self.mig_offer = MigOffer(plan.vendor.resources.count if plan is not None else "")
        self.watched = watched = WatchedCluster(
            client,
            rules.vendors,
            reservation_timeout=settings.reservation_timeout,
            now=now,
            node_label_selector=settings.node_label_selector,
            resync_interval=settings.resync_interval,
            mig_offer=self.mig_offer,
            pod_marks=admission_settings.pod_marks(plan),
            verify=grants.verifier(keys, rules.vendors, settings),
        )
        self.assumed_pods = AssumedPods(watched, clock=clock, timeout=settings.reservation_timeout)
        self.unschedulable = UnschedulablePods(watched, clock=clock)
        self.precedence = Precedence(watched, self.unschedulable, clock=clock)
        self.placer = Placer(
            watched.cluster,
            self.assumed_pods,
            rules.defaults,
            unresolvable=settings.unresolvable_nodes,
        )
        self.lost_answers = LostAnswers(client, watched, self.assumed_pods, clock=clock)

        # Who may write.
        self._role_changes: asyncio.Queue[bool] = asyncio.Queue()
        self.leadership, self.elector = leadership.elect(
            settings,
            client,
            hostname=hostname,
            clock=clock,
            now=now,
            handlers=(
                self.assumed_pods.leadership_changed,
                self.precedence.leadership_changed,
                self._role_changes.put_nowait,
                self._read_lease_again,
            ),
        )
        self.informers = self._informers()
        self.leader_label = readiness.LeaderLabel(
            client,
            watched.pods,
            namespace=settings.pod_namespace,
            name=settings.pod_name,
            leadership=self.leadership,
            now=now,
        )
        self.readiness = Readiness(self.leadership, self.informers, self.leader_label.catch_up)

        self.watchdog = LoopWatchdog(
            self.metrics.loop, counts=lambda: not self.readiness.why_not_synced()
        )

        # Events.
        self.recorder = EventRecorder(client, component=settings.scheduler_name, host=hostname)
        self.pod_events = PodEvents(self.recorder)
        self.bypassed = BypassedPods(
            watched, self.pod_events, self.leadership, scheduler_name=settings.scheduler_name
        )
        self.unproven = UnprovenPods(
            watched, self.pod_events, self.leadership, scheduler_name=settings.scheduler_name
        )

        # The verbs.
        self.filter = Filter(
            watched=watched,
            placer=self.placer,
            assumed_pods=self.assumed_pods,
            unschedulable=self.unschedulable,
            precedence=self.precedence,
            readiness=self.readiness,
            budget=settings.filter_budget,
            now=now,
        )
        self.locks = NodeLocks(
            client, watched, timeout=settings.node_lock_timeout, clock=clock, now=now
        )
        self.binder = Binder(
            client=client,
            watched=watched,
            placer=self.placer,
            precedence=self.precedence,
            assumed_pods=self.assumed_pods,
            leadership=self.leadership,
            locks=self.locks,
            lost_answers=self.lost_answers,
            keys=keys,
            metrics=self.metrics,
            group_patience=settings.node_lock_retry_timeout,
            clock=clock,
            now=now,
        )
        self.http_api = HttpApi(
            filter_=self.filter,
            binder=self.binder,
            preemption=Preemption(
                client, watched, self.placer, self.precedence, self.readiness, now=now
            ),
            assumed_pods=self.assumed_pods,
            readiness=self.readiness,
            explainer=Explainer(
                client=client,
                watched=watched,
                placer=self.placer,
                assumed_pods=self.assumed_pods,
                unschedulable=self.unschedulable,
            ),
            pod_events=self.pod_events,
            metrics=self.metrics,
            tracer=tracer,
            watchdog=self.watchdog,
            budget=settings.filter_budget,
        )
        self.reviewer = Reviewer(
            admission.context(rules, self.mig_offer, watched.cluster),
            instruments=admission_serve.Metrics(self.metrics.registry),
            tracer=tracer,
            why_not_ready=self.readiness.why_not_synced,
            patience=settings.filter_budget,
        )

        # Work beside the requests.
        self.kube_version = KubeVersion(client)
        self.requeue = Requeue(
            client,
            watched,
            self.unschedulable,
            precedence=self.precedence,
            readiness=self.readiness,
            kube_version=self.kube_version,
            clock=clock,
            now=now,
        )
        self.explanation_notes = ExplanationNotes(
            client, self.unschedulable, self.leadership, clock=clock
        )
        self.evictions = Evictions(
            client,
            watched,
            self.pod_events,
            readiness=self.readiness,
            metrics=self.metrics,
            settings=settings,
            clock=clock,
        )
        self.handshakes = Handshakes(client, watched, self.readiness, now=now)
        self.shared_locks = SharedLocks(client, watched, self.locks, self.readiness)
        self.maintenance = Maintenance(
            watched=watched,
            assumed_pods=self.assumed_pods,
            lost_answers=self.lost_answers,
            leadership=self.leadership,
            interval=settings.resync_interval,
        )
        self.metrics_page = MetricsPage(
            self.metrics,
            watched=watched,
            assumed_pods=self.assumed_pods,
            unschedulable=self.unschedulable,
            requeue=self.requeue,
            bypassed=self.bypassed,
            unproven=self.unproven,
            overusing=self.evictions.overusing,
            maintenance=self.maintenance,
            leadership=self.leadership,
            readiness=self.readiness,
            informers=self.informers,
            recorder=self.recorder,
            certificate=self.certificate,
            settings=settings,
        )

    def _read_lease_again(self, leading: bool) -> None:  # noqa: FBT001  a handler's only value
        """Read the lease again when it was lost: after a restore of etcd no watch shows it."""
        if not leading and "lease" in self.informers:
            self.informers["lease"].resync()

    def routes(self) -> tuple[Route, ...]:
        """Return the routes of the server that kube-scheduler and the API server call."""
        checks = endpoints.Health(
            {
                "caches": self.readiness.why_not_synced,
                "leader": self.readiness.why_not_ready,
                "running": self.stopping.why_not_ready,
            },
            # Every synced replica answers admission, the leader alone schedules.
            subsets={"webhook": ("caches", "running")},
        )
        debug = endpoints.debug_routes() if self.settings.profiling else ()
        return (
            *self.http_api.routes(),
            self.reviewer.route(),
            *endpoints.health_routes(checks.ready),
            *debug,
        )

    def background(self) -> dict[str, Coroutine[Any, Any, None]]:
        """Return the work beside the requests, by name; none of it ends by itself."""
        tasks: dict[str, Coroutine[Any, Any, None]] = {
            f"informer of {kind}": informer.run() for kind, informer in self.informers.items()
        }
        if self.elector is not None:
            tasks["own lease"] = self.elector.run()
        if self.certificate is not None:
            tasks["certificate"] = self.certificate.watch()
        tasks |= {
            "readiness": self.readiness.run(),
            "maintenance": self.maintenance.run(),
            "requeue": self.requeue.run(),
            "explanations": self.explanation_notes.run(),
            "evictions": self.evictions.run(),
            "handshakes": self.handshakes.run(),
            "shared locks": self.shared_locks.run(),
            "events": self.recorder.run(),
            "version": self.kube_version.run(),
            "watchdog": self.watchdog.run(),
            "leader label": readiness.follow(self.leader_label, self._role_changes),
        }
        return tasks

    def _informers(self) -> dict[str, Informer[Any]]:
        """Return the informers by kind; these are also the names in metrics."""
        settings, watched = self.settings, self.watched
        informers: dict[str, Informer[Any]] = {
            "nodes": watched.nodes,
            "pods": watched.pods,
            "quotas": watched.quotas,
        }
        if settings.leader_elect and not settings.leader_elect_own_lease:
            lease: Informer[objects.Lease] = Informer(
                self.client,
                paths.leases(settings.leader_elect_resource_namespace),
                listwatch.all_of(objects.Lease, "lease"),
                kind="lease",
                query={"fieldSelector": f"metadata.name={settings.leader_elect_resource_name}"},
                resync_interval=settings.resync_interval,
            )
            lease.add_handler(self.leadership.on_lease)
            informers["lease"] = lease
        return informers


async def _serve(scheduler: Scheduler, stop: asyncio.Event) -> None:
    settings, certificate = scheduler.settings, scheduler.certificate
    main = Server(scheduler.routes(), tls=certificate, drain_timeout=settings.drain_timeout)
    metrics = Server([scheduler.metrics_page.route()], drain_timeout=1)
    async with asyncio.TaskGroup() as group:
        await main.start(*addresses.parse(settings.http_bind))
        _log.info("serving", extra={"address": settings.http_bind, "tls": certificate is not None})
        if settings.metrics_bind_address:
            await metrics.start(*addresses.parse(settings.metrics_bind_address))
        tasks = lifetime.start(group, scheduler.background())
        freeze = lifetime.freeze_when_synced(scheduler.informers.values())
        tasks.append(group.create_task(lifetime.logged("memory", freeze), name="memory"))
        await stop.wait()
        main.let_go()
        await scheduler.stopping.announce()
        await main.stop()
        await scheduler.binder.drain()
        await metrics.stop()
        if scheduler.elector is not None:
            await scheduler.elector.release()
        await scheduler.lost_answers.end()
        for task in tasks:
            task.cancel()
