"""`hami scheduler`, from start to end.

The servers come first, so that a probe finds somebody; the caches fill; once they are and we lead,
requests are answered. Any background task that ends by itself ends the process: kubelet starts it
anew, and everything it needs to know is in the API server. On SIGTERM requests under way are
finished, and a Binding that has been sent is always waited for.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import signal
from collections.abc import Coroutine
from typing import Any

from hami.extender.assembly import Scheduler, vendors_of
from hami.extender.grant_keys import KeyFolder
from hami.extender.settings import Settings
from hami.kube import access
from hami.kube.client import Client
from hami.serving import bind_address, tracing
from hami.serving.certificates import LiveCertificate
from hami.serving.http_server import Server

_log = logging.getLogger(__name__)

USER_AGENT = "hami-scheduler"
DEFAULT_TIMEOUT_S = 30.0
#: Young objects before a collection. What is decoded from the API server is not tracked at all, and
#: a full collection over a large ledger would hold up a request for longer than its decision takes.
GC_THRESHOLDS = (50_000, 25, 100)


async def run(settings: Settings) -> None:
    """Run until SIGTERM or SIGINT."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    vendors, warnings = vendors_of(settings)
    for warning in warnings:
        _log.warning("device configuration", extra={"warning": warning})
    keys = KeyFolder(settings.grant_key_dir) if settings.grant_key_dir else None
    tracer = tracing.Tracer.from_endpoint(settings.otlp_endpoint, "hami-scheduler")
    gc.set_threshold(*GC_THRESHOLDS)
    client = Client(
        access.find(settings.kubeconfig),
        user_agent=USER_AGENT,
        timeout=settings.kube_timeout or DEFAULT_TIMEOUT_S,
        qps=settings.kube_qps,
        burst=settings.kube_burst,
    )
    async with client:
        scheduler = Scheduler(settings, client, vendors=vendors, keys=keys, tracer=tracer)
        try:
            await _serve(scheduler, stop)
        finally:
            await tracer.close()
    _log.info("stopped")


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
        tasks = [
            group.create_task(_endless(name, work), name=name)
            for name, work in scheduler.background().items()
        ]
        if certificate is not None:
            tasks.append(group.create_task(certificate.watch(), name="certificate"))
        tasks.append(group.create_task(_freeze_when_synced(scheduler), name="freeze"))
        await stop.wait()
        _log.info("stopping")
        await main.stop()
        await scheduler.binder.drain()
        await metrics.stop()
        if scheduler.elector is not None:
            await scheduler.elector.release()
        await scheduler.fates.end()
        for task in tasks:
            task.cancel()


async def _endless(name: str, work: Coroutine[Any, Any, None]) -> None:
    """Run a task that must not end; what ends it is said before it takes the process along."""
    try:
        await work
    except Exception:
        # The root of a task: without this line nobody would know which one it was.
        _log.exception("a background task failed", extra={"task": name})
        raise
    raise RuntimeError(f"background task {name!r} ended by itself")


async def _freeze_when_synced(scheduler: Scheduler) -> None:
    """Take what the caches hold after their first list out of the collector's sight."""
    for cache in scheduler.caches.values():
        await cache.wait_synced()
    gc.collect()
    gc.freeze()
