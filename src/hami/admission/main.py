"""`hami webhook`: replace missing MIG profiles in clusters without our scheduler.

It watches nodes (in `available` mode also pods), keeps no state of its own, and any number of
replicas answer. It has no card table, so it never loads numpy. Memory that reading the lists took
is returned to the system afterwards.
"""

from __future__ import annotations

import asyncio
import importlib.metadata
import logging
from collections.abc import Coroutine, Iterable
from typing import Any, NoReturn

from hami.admission import informers
from hami.admission import settings as admission_settings
from hami.admission.mig_offer import MigOffer
from hami.admission.serve import Metrics, Reviewer
from hami.admission.settings import Context, Rules, Settings, unlimited
from hami.kube import access
from hami.kube.client import Client
from hami.serving import addresses, endpoints, lifetime, metrics, tracing
from hami.serving.certificates import LiveCertificate
from hami.serving.http_server import Server
from hami.vendors import device_config

_log = logging.getLogger(__name__)

USER_AGENT = "hami-webhook"


async def run(settings: Settings) -> None:
    """Run until SIGTERM or SIGINT."""
    stop = lifetime.stop_asked()
    lifetime.bound()
    config = device_config.load_or_built_in(settings.device_config_file)
    config.log_to(_log)
    rules = admission_settings.webhook_rules(settings, config.vendors)
    tracer = tracing.Tracer.from_endpoint(settings.otlp_endpoint, USER_AGENT)
    async with access.client(settings, user_agent=USER_AGENT) as client:
        webhook = Webhook(settings, client, rules=rules, tracer=tracer)
        try:
            await webhook.serve(stop)
        finally:
            await tracer.close()
    _log.info("stopped")


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
        self.informers = informers.build(
            client,
            self.mig_offer,
            pod_marks=admission_settings.pod_marks(rules.fallback),
            resync_interval=settings.resync_interval,
        )
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
