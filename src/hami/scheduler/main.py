"""`hami scheduler`: builds its parts and runs them.

The scheduler process put together: every part made once, and what it needs handed to it.
Nothing here decides anything. `hami.scheduler.main` starts and stops what is assembled here;
tests assemble the same with another clock or another API server.

`hami scheduler`, from start to end.
The servers come first, so that a probe finds somebody; the caches fill; once they are and we lead,
requests are answered. On SIGTERM requests under way are finished, and a Binding that has been sent
is always waited for.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import socket
import time
import uuid
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any

import msgspec

from hami.admission import serve as admission_instruments
from hami.admission import settings as admission_settings
from hami.admission.mig_offer import MigOffer
from hami.admission.rules import Facts, Rules
from hami.admission.serve import Reviewer
from hami.kube import access, events, listwatch, paths
from hami.kube.client import Client
from hami.kube.informer import Informer
from hami.kube.lease import LeaseElector
from hami.placement.request import Defaults
from hami.scheduler import cluster_metrics, explain, readiness
from hami.scheduler import events as scheduler_events
from hami.scheduler.assumed_pods import AssumedPods, LostAnswers
from hami.scheduler.bind import Binder
from hami.scheduler.compat import Handshakes
from hami.scheduler.events import Bypassed
from hami.scheduler.filter import Filter
from hami.scheduler.http_api import HttpApi
from hami.scheduler.informers import World
from hami.scheduler.kube_scheduler import KubeVersion
from hami.scheduler.leadership import AlwaysLeading, Leadership, is_sibling
from hami.scheduler.maintenance import Maintenance
from hami.scheduler.metrics import Metrics
from hami.scheduler.node_lock import NodeLocks
from hami.scheduler.readiness import Readiness
from hami.scheduler.requeue import Requeue
from hami.scheduler.settings import Settings
from hami.scheduler.unschedulable import FIRST_AFTER_S, ExplanationNotes, UnschedulablePods
from hami.serving import addresses, endpoints, lifetime, metrics, tracing
from hami.serving.certificates import LiveCertificate
from hami.serving.grant_keys import KeyFolder
from hami.serving.http_server import Request, Response, Route, Server
from hami.vendors import device_config
from hami.vendors.device_config import DeviceConfig
from hami.wire import objects, text_values


def boot_time() -> float:
    """Return seconds since boot: never set back, and going on while the machine sleeps."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class Scheduler:
    """All parts of one replica."""

    def __init__(
        self,
        settings: Settings,
        client: Client,
        *,
        rules: Rules,
        keys: KeyFolder | None,
        tracer: tracing.Tracer,
        hostname: str = "",
        clock: Callable[[], float] = boot_time,
        now: Callable[[], float] = time.time,
    ) -> None:
        hostname = hostname or socket.gethostname()
        self.settings = settings
        self.client = client
        self.tracer = tracer
        self.instruments = Metrics()
        defaults = rules.defaults
        plan = rules.fallback
        self.mig_offer = MigOffer(plan.vendor.resources.count if plan is not None else "")
        self.world = world = World(
            client,
            rules.vendors,
            reservation_timeout=settings.reservation_timeout,
            now=now,
            node_label_selector=settings.node_label_selector,
            resync_interval=settings.resync_interval,
            mig_offer=self.mig_offer,
            mig_words=admission_settings.looked_for(plan),
        )
        self.bookings = AssumedPods(world, clock=clock, timeout=settings.reservation_timeout)
        self.waiting = UnschedulablePods(world, clock=clock, first_note_after=FIRST_AFTER_S)
        self.elector: LeaseElector | None = None
        self._role_changes: asyncio.Queue[bool] = asyncio.Queue()
        self.leadership = self._leadership(hostname, clock, now)
        self.informers = self._informers()
        self.roles = readiness.LeaderLabel(
            client,
            world.pods,
            namespace=settings.pod_namespace,
            name=settings.pod_name,
            leads=lambda: self.leadership.leading,
            now=now,
        )
        self.readiness = Readiness(self.leadership, self.informers, self.roles.catch_up)
        self.fates = LostAnswers(client, world, self.bookings, clock=clock)
        self.recorder = events.EventRecorder(
            client, component=settings.scheduler_name, host=hostname
        )
        teller = scheduler_events.PodEvents(self.recorder)
        bypassed = Bypassed(
            world,
            teller,
            leads=lambda: self.leadership.leading,
            scheduler_name=settings.scheduler_name,
        )
        self.instruments.bypassed_pods.set_function(lambda: len(bypassed))
        self.binder = Binder(
            client=client,
            world=world,
            bookings=self.bookings,
            leadership=self.leadership,
            locks=NodeLocks(
                client, world, timeout=settings.node_lock_timeout, clock=clock, now=now
            ),
            fates=self.fates,
            keys=keys,
            defaults=defaults,
            group_patience=settings.node_lock_retry_timeout,
            clock=clock,
            now=now,
        )
        self.kube_version = KubeVersion(client)
        self.wake_ups = Requeue(
            client,
            world,
            self.waiting,
            self.readiness,
            node_events_wake=lambda: self.kube_version.node_events_wake,
            clock=clock,
            now=now,
        )
        self.notes = ExplanationNotes(client, self.waiting, self.leadership, clock=clock)
        self.handshakes = Handshakes(client, world, self.readiness, now=now)
        self.upkeep = Maintenance(
            world=world,
            bookings=self.bookings,
            waiting=self.waiting,
            wake_ups=self.wake_ups,
            fates=self.fates,
            leadership=self.leadership,
            readiness=self.readiness,
            caches=self.informers,
            recorder=self.recorder,
            instruments=self.instruments,
            interval=settings.resync_interval,
        )
        self.verbs = HttpApi(
            filter_=Filter(
                world=world,
                bookings=self.bookings,
                waiting=self.waiting,
                binder=self.binder,
                readiness=self.readiness,
                defaults=defaults,
                budget=settings.filter_budget,
                now=now,
            ),
            binder=self.binder,
            bookings=self.bookings,
            readiness=self.readiness,
            explainer=explain.Explainer(
                client=client,
                world=world,
                bookings=self.bookings,
                waiting=self.waiting,
                defaults=defaults,
            ),
            teller=teller,
            instruments=self.instruments,
            tracer=tracer,
            budget=settings.filter_budget,
        )
        self.stopping = lifetime.Stopping(settings.shutdown_delay)
        self.reviewer = Reviewer(
            Facts(rules=rules, inventory=self.mig_offer, headroom=world.cluster.quotas.headroom),
            instruments=admission_instruments.Metrics(self.instruments.registry),
            tracer=tracer,
            why_not_ready=self._caches_missing,
            patience=settings.filter_budget,
        )

    def routes(self) -> tuple[Route, ...]:
        """Return what is served where kube-scheduler calls."""
        checks = endpoints.Health(
            {
                "caches": self._caches_missing,
                "leader": self._leader_missing,
                "running": self.stopping.why_not_ready,
            },
            # Every synced replica answers admission, the leader alone schedules.
            subsets={"webhook": ("caches", "running")},
        )
        debug = endpoints.debug_routes() if self.settings.profiling else ()
        return (
            *self.verbs.routes(),
            self.reviewer.route(),
            *endpoints.health_routes(checks.ready),
            *debug,
        )

    def metrics_routes(self) -> tuple[Route, ...]:
        route = metrics.route(self.instruments.registry, self._families)

        async def answer(request: Request) -> Response:
            self.upkeep.count()  # before they are written, not by the second
            return await route.handler(request)

        return (msgspec.structs.replace(route, handler=answer),)

    def background(self) -> dict[str, Coroutine[Any, Any, None]]:
        """Return what runs beside the requests, by name; none of it ever ends by itself."""
        tasks: dict[str, Coroutine[Any, Any, None]] = {
            f"informer of {kind}": informer.run() for kind, informer in self.informers.items()
        }
        if self.elector is not None:
            tasks["own lease"] = self.elector.run()
        tasks |= {
            "readiness": self.readiness.run(),
            "upkeep": self.upkeep.run(),
            "wake-ups": self.wake_ups.run(),
            "notes": self.notes.run(),
            "handshakes": self.handshakes.run(),
            "events": self.recorder.run(),
            "version": self.kube_version.run(),
            "roles": readiness.follow(self.roles, self._role_changes),
        }
        return tasks

    def _leadership(
        self, hostname: str, clock: Callable[[], float], now: Callable[[], float]
    ) -> Leadership:
        settings = self.settings
        handlers = (self.bookings.leadership_changed, self._role_changes.put_nowait)
        if not settings.leader_elect:
            return AlwaysLeading(clock=clock, handlers=handlers)
        identity = f"{hostname}_{uuid.uuid4()}"
        own = settings.leader_elect_own_lease
        leadership = Leadership(
            is_ours=(
                (lambda holder: holder == identity)
                if own
                else (lambda holder: is_sibling(holder, hostname))
            ),
            lease_duration=settings.leader_elect_lease_duration,
            renew_deadline=settings.leader_elect_renew_deadline,
            clock=clock,
            now=now,
            handlers=handlers,
        )
        if own:
            self.elector = LeaseElector(
                self.client,
                namespace=settings.leader_elect_resource_namespace,
                name=settings.leader_elect_resource_name,
                identity=identity,
                lease_duration=settings.leader_elect_lease_duration,
                renew_deadline=settings.leader_elect_renew_deadline,
                retry_period=settings.leader_elect_retry_period,
                on_observed=leadership.observe,
            )
        return leadership

    def _informers(self) -> dict[str, Informer[Any]]:
        """Return the informers by kind; these are also the names in metrics."""
        settings, world = self.settings, self.world
        informers: dict[str, Informer[Any]] = {
            "nodes": world.nodes,
            "pods": world.pods,
            "quotas": world.quotas,
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

    def _families(self) -> AsyncIterator[bytes]:
        return cluster_metrics.families(self.world.cluster, legacy=self.settings.legacy_metrics)

    def _caches_missing(self) -> str:
        return "" if self.readiness.caches_synced else self.readiness.why_not()

    def _leader_missing(self) -> str:
        return "" if self.readiness.ready else self.readiness.why_not()


_log = logging.getLogger(__name__)

USER_AGENT = "hami-scheduler"
#: Young objects before a collection. What is decoded from the API server is not tracked at all, and
#: a full collection over a large ledger would hold up a request for longer than its decision takes.
GC_THRESHOLDS = (50_000, 25, 100)


async def run(settings: Settings) -> None:
    """Run until SIGTERM or SIGINT."""
    stop = lifetime.stop_asked()
    config = device_config.load_or_built_in(settings.device_config_file)
    for warning in config.warnings:
        _log.warning("device configuration", extra={"warning": warning})
    rules = admission_rules(settings, config)
    keys = KeyFolder(settings.grant_key_dir) if settings.grant_key_dir else None
    tracer = tracing.Tracer.from_endpoint(settings.otlp_endpoint, USER_AGENT)
    gc.set_threshold(*GC_THRESHOLDS)
    async with access.client(settings, user_agent=USER_AGENT) as client:
        scheduler = Scheduler(settings, client, rules=rules, keys=keys, tracer=tracer)
        try:
            await _serve(scheduler, stop)
        finally:
            await tracer.close()
    _log.info("stopped")


def admission_rules(settings: Settings, config: DeviceConfig) -> Rules:
    """Return what admission in this process goes by; reads the file of MIG chains."""
    return Rules(
        vendors=config.vendors,
        nvidia=config.nvidia,
        scheduler_name=settings.scheduler_name,
        force_overwrite_default_scheduler=settings.force_overwrite_default_scheduler,
        defaults=Defaults(settings.node_scheduler_policy, settings.gpu_scheduler_policy),
        hook_path=settings.hook_path,
        high_priority_namespaces=frozenset(
            text_values.comma_list(settings.high_priority_namespaces)
        ),
        high_priority_classes=frozenset(text_values.comma_list(settings.high_priority_classes)),
        fallback=admission_settings.plan(
            config.vendors,
            mode=settings.mig_fallback,
            end=settings.mig_fallback_gpu,
            file=settings.mig_fallback_file,
        ),
    )


async def _serve(scheduler: Scheduler, stop: asyncio.Event) -> None:
    settings = scheduler.settings
    certificate = None
    if settings.cert_file:
        certificate = LiveCertificate(
            settings.cert_file, settings.key_file, settings.client_ca_file
        )
        scheduler.instruments.certificate_days.set_function(lambda: certificate.days)
    main = Server(scheduler.routes(), tls=certificate, drain_timeout=settings.drain_timeout)
    metrics = Server(scheduler.metrics_routes(), drain_timeout=1)
    async with asyncio.TaskGroup() as group:
        await main.start(*addresses.parse(settings.http_bind))
        _log.info("serving", extra={"address": settings.http_bind, "tls": certificate is not None})
        if settings.metrics_bind_address:
            await metrics.start(*addresses.parse(settings.metrics_bind_address))
        works = scheduler.background()
        if certificate is not None:
            works["certificate"] = certificate.watch()
        tasks = lifetime.start(group, works)
        tasks.append(group.create_task(lifetime.freeze_when_synced(scheduler.informers.values())))
        await stop.wait()
        main.let_go()
        await scheduler.stopping.announce()
        await main.stop()
        await scheduler.binder.drain()
        await metrics.stop()
        if scheduler.elector is not None:
            await scheduler.elector.release()
        await scheduler.fates.end()
        for task in tasks:
            task.cancel()
