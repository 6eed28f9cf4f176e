"""`hami webhook`: replace missing MIG profiles in clusters without our scheduler.

It watches nodes (in `available` mode also pods), keeps no state of its own, and any number of
replicas answer. It has no card table, so it never loads numpy. Memory that reading the lists took
is returned to the system afterwards.
"""

from __future__ import annotations

import asyncio
import importlib.metadata
import logging
from collections.abc import Callable, Coroutine, Iterable, Mapping
from typing import Any, NoReturn

import msgspec

from hami.admission import settings as admission_settings
from hami.admission.mig_offer import MigOffer
from hami.admission.serve import Metrics, Reviewer
from hami.admission.settings import Context, Rules, Settings, unlimited
from hami.kube import access, listwatch, paths
from hami.kube.client import Client
from hami.kube.informer import Informer
from hami.serving import addresses, endpoints, lifetime, metrics, tracing
from hami.serving.certificates import LiveCertificate
from hami.serving.http_server import Server
from hami.vendors import device_config
from hami.wire import codec, objects

_log = logging.getLogger(__name__)

USER_AGENT = "hami-webhook"
#: A node has about 30 kB. A page of 500, as for pods, would take twice the memory of the process.
_NODES_AT_ONCE = 50


async def run(settings: Settings) -> None:
    """Run until SIGTERM or SIGINT."""
    stop = lifetime.stop_asked()
    lifetime.bound()
    config = device_config.load_or_built_in(settings.device_config_file)
    for warning in config.warnings:
        _log.warning("device configuration", extra={"warning": warning})
    rules = admission_settings.webhook_rules(settings, config.vendors)
    tracer = tracing.Tracer.from_endpoint(settings.otlp_endpoint, USER_AGENT)
    async with access.client(settings, user_agent=USER_AGENT) as client:
        webhook = Webhook(settings, client, rules=rules, tracer=tracer)
        try:
            await webhook.serve(stop)
        finally:
            await tracer.close()
    _log.info("stopped")


class WatchedNode(msgspec.Struct, frozen=True):
    """The part of a Node that is kept."""

    uid: str
    name: str
    version: int
    offered: Mapping[str, int]
    #: Nodes have none.
    namespace: str = ""


class WatchedPod(msgspec.Struct, frozen=True):
    """The part of a Pod that is kept."""

    uid: str
    namespace: str
    name: str
    version: int
    node: str
    held: Mapping[str, int]


def node_reader(mig_offer: MigOffer) -> Callable[[bytes], WatchedNode]:
    """Return a reader of nodes."""

    def read(body: bytes) -> WatchedNode:
        node = codec.decode(body, objects.Node, what="node")
        return WatchedNode(node.uid, node.name, node.version, mig_offer.offered(node))

    return read


def pod_reader(mig_offer: MigOffer, words: Iterable[str]) -> Callable[[bytes], WatchedPod | None]:
    """Return a reader of pods in whose JSON any of these words is; others are not decoded."""
    decode = listwatch.pods_with(words)

    def read(body: bytes) -> WatchedPod | None:
        pod = decode(body)
        if pod is None:
            return None
        held = mig_offer.held(pod)
        return WatchedPod(pod.uid, pod.namespace, pod.name, pod.version, pod.node_name, held)

    return read


class Webhook:
    """All parts of one replica."""

    def __init__(
        self, settings: Settings, client: Client, *, rules: Rules, tracer: tracing.Tracer
    ) -> None:
        self.settings = settings
        self.registry = metrics.Registry()
        self.registry.build_info(version=importlib.metadata.version("hami"))
        self.certificate_days = self.registry.gauge(
            "hami_webhook_certificate_days", "Days until the serving certificate expires."
        )
        self.stopping = lifetime.Stopping(settings.shutdown_delay)
        self.mig_offer = MigOffer(admission_settings.gpu_resource(rules.fallback))
        self.informers = self._informers(client, admission_settings.pod_marks(rules.fallback))
        reviewer = Reviewer(
            Context(rules=rules, mig_offer=self.mig_offer, headroom=unlimited),
            instruments=Metrics(self.registry),
            tracer=tracer,
            why_not_ready=self._caches_missing,
        )
        checks = endpoints.Health(
            {"caches": self._caches_missing, "running": self.stopping.why_not_ready},
            # The scheduler has the same subset, so that one probe fits both.
            subsets={"webhook": ("caches", "running")},
        )
        self.routes = (reviewer.route(), *endpoints.health_routes(checks.ready))

    def _informers(self, client: Client, pod_marks: tuple[str, ...]) -> dict[str, Informer[Any]]:
        interval = self.settings.resync_interval
        nodes = Informer(
            client,
            paths.nodes(),
            node_reader(self.mig_offer),
            kind="nodes",
            resync_interval=interval,
            page_size=_NODES_AT_ONCE,
        )
        nodes.add_handler(self.mig_offer.on_node)
        informers: dict[str, Informer[Any]] = {"nodes": nodes}
        if pod_marks:
            pods = Informer(
                client,
                paths.pods(),
                pod_reader(self.mig_offer, pod_marks),
                kind="pods",
                resync_interval=interval,
            )
            pods.add_handler(self.mig_offer.on_pod)
            informers["pods"] = pods
        return informers

    def _caches_missing(self) -> str:
        missing = [kind for kind, each in self.informers.items() if not each.synced]
        return f"{' and '.join(missing)} not read yet" if missing else ""

    async def serve(self, stop: asyncio.Event) -> None:
        """Answer until `stop` is set, then let clients leave and requests end."""
        settings = self.settings
        certificate = None
        if settings.cert_file:
            certificate = LiveCertificate(settings.cert_file, settings.key_file)
            self.certificate_days.set_function(certificate.days_left)
        main = Server(self.routes, tls=certificate, drain_timeout=settings.drain_timeout)
        metrics_server = Server([metrics.route(self.registry)], drain_timeout=1)
        async with asyncio.TaskGroup() as group:
            await main.start(*addresses.parse(settings.http_bind))
            _log.info(
                "serving", extra={"address": settings.http_bind, "tls": certificate is not None}
            )
            if settings.metrics_bind_address:
                await metrics_server.start(*addresses.parse(settings.metrics_bind_address))
            works: dict[str, Coroutine[Any, Any, None]] = {
                f"informer of {kind}": each.run() for kind, each in self.informers.items()
            }
            works["memory"] = _keep_small(self.informers.values())
            if certificate is not None:
                works["certificate"] = certificate.watch()
            tasks = lifetime.start(group, works)
            await stop.wait()
            main.let_go()
            await self.stopping.announce()
            await main.stop()
            await metrics_server.stop()
            for task in tasks:
                task.cancel()


async def _keep_small(informers: Iterable[lifetime.Synced]) -> NoReturn:
    await lifetime.freeze_when_synced(informers)
    await lifetime.keep_giving_back()
