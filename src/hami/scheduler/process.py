"""`hami scheduler`, from start to end.

The servers come first, so that a probe finds somebody; the caches fill; once they are and we lead,
requests are answered. On SIGTERM requests under way are finished, and a Binding that has been sent
is always waited for.
"""

from __future__ import annotations

import asyncio
import gc
import logging

from hami.admission import configuring
from hami.admission.rules import Rules
from hami.kube import connecting
from hami.placement.request import Defaults
from hami.scheduler.assembly import Scheduler
from hami.scheduler.settings import Settings
from hami.serving import bind_address, lifetime, tracing
from hami.serving.certificates import LiveCertificate
from hami.serving.grant_keys import KeyFolder
from hami.serving.http_server import Server
from hami.vendors import device_config
from hami.vendors.device_config import DeviceConfig
from hami.wire import comma_list

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
    async with connecting.client(settings, user_agent=USER_AGENT) as client:
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
        high_priority_namespaces=frozenset(comma_list.tokens(settings.high_priority_namespaces)),
        high_priority_classes=frozenset(comma_list.tokens(settings.high_priority_classes)),
        fallback=configuring.plan(
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
        await main.start(*bind_address.parse(settings.http_bind))
        _log.info("serving", extra={"address": settings.http_bind, "tls": certificate is not None})
        if settings.metrics_bind_address:
            await metrics.start(*bind_address.parse(settings.metrics_bind_address))
        works = scheduler.background()
        if certificate is not None:
            works["certificate"] = certificate.watch()
        tasks = lifetime.start(group, works)
        tasks.append(group.create_task(lifetime.freeze_when_synced(scheduler.caches.values())))
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
