"""`hami agent`, from start to end.

The ledger is read first: a container that was prepared once can start before anything else works.
Then driver, API server, kubelet and runtime are each waited for by itself, and none of them holds
up the others. At the end the mark of late binding goes first, so that whoever binds from then on
takes the lock.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any, NoReturn

from hami.agent.assembly import Agent
from hami.agent.cards.node_config_watch import NodeConfigFile
from hami.agent.errors import AgentError
from hami.agent.settings import Settings
from hami.kube import connecting
from hami.serving import bind_address, health, lifetime, memory, metrics, tracing
from hami.serving.errors import ServingError
from hami.serving.grant_keys import KeyFolder
from hami.serving.http_server import Server
from hami.vendors import device_config

_log = logging.getLogger(__name__)

USER_AGENT = "hami-agent"


async def run(settings: Settings) -> None:
    """Run until SIGTERM or SIGINT."""
    stop = lifetime.stop_asked()
    memory.bound()
    config = device_config.load_or_built_in(settings.device_config_file)
    for warning in config.warnings:
        _log.warning("device configuration", extra={"warning": warning})
    keys = KeyFolder(settings.grant_key_dir) if settings.grant_key_dir else None
    if keys is None:
        _log.warning("grants are not checked: --grant-key-dir is empty")
    tracer = tracing.Tracer.from_endpoint(settings.otlp_endpoint, USER_AGENT)
    file = NodeConfigFile(settings, config.nvidia)
    async with connecting.client(settings, user_agent=USER_AGENT) as client:
        agent = Agent(
            settings, client, config=config, node_config=file.config, keys=keys, tracer=tracer
        )
        try:
            await _serve(agent, file, stop)
        finally:
            await tracer.close()
    _log.info("stopped")


async def _serve(agent: Agent, file: NodeConfigFile, stop: asyncio.Event) -> None:
    settings = agent.settings
    try:
        agent.ledger.load()
        agent.library.install()
    except AgentError as error:
        raise ServingError(str(error)) from error
    agent.prune_libraries()
    checks = health.Health({"cards": agent.why_not_ready, "caches": agent.caches_missing})
    server = Server(
        [metrics.route(agent.instruments.registry), *health.routes(checks.ready)], drain_timeout=1
    )
    async with asyncio.TaskGroup() as group:
        if settings.metrics_bind_address:
            await server.start(*bind_address.parse(settings.metrics_bind_address))
        tasks = lifetime.start(group, _works(agent, file, stop))
        await stop.wait()
        await agent.node.withdraw()
        await agent.link.stop()
        await agent.mig.stop()
        await server.stop()
        for task in tasks:
            task.cancel()


def _works(
    agent: Agent, file: NodeConfigFile, stop: asyncio.Event
) -> dict[str, Coroutine[Any, Any, None]]:
    return {
        "cards": _cards(agent, file),
        "node configuration": file.watch(stop),
        "restoring": _restore(agent),
        "pods": agent.pods.reflector.run(),
        "node": agent.node.run(),
        "binding mode": agent.mode.run(),
        "kubelet": _forever(agent.link.run()),
        "MIG resources": agent.mig.run(),
        "telling pods": agent.report.run(),
        "events": agent.events.run(),
        "sweeping": _after_sync(agent),
        "resizing": _resize(agent),
        "memory": memory.keep_giving_back(),
    }


async def _forever(work: Coroutine[Any, Any, None]) -> NoReturn:
    """Wait on after the end: kubelet's link ends when it is told to, before everything else."""
    await work
    await asyncio.Event().wait()
    raise AssertionError


async def _cards(agent: Agent, file: NodeConfigFile) -> None:
    """Ask the driver, unless the node's configuration says something that nobody can follow."""
    if file.mistake:
        agent.cards.lack("NodeConfigWrong", file.mistake)
        await asyncio.Event().wait()
    await agent.cards.run()


async def _restore(agent: Agent) -> NoReturn:
    """Lay out again what a reboot took, and adopt, as soon as the cards are known."""
    await agent.cards.known.wait()
    agent.shares.restore()
    agent.sweeper.look()
    await asyncio.Event().wait()
    raise AssertionError


async def _resize(agent: Agent) -> None:
    """Change shares once it is known what the cards have."""
    await agent.cards.known.wait()
    await agent.resizing.run()


async def _after_sync(agent: Agent) -> None:
    """Forget and adopt pods once it is known which there are."""
    await agent.pods.reflector.wait_synced()
    for record in agent.ledger.records():
        if record.tokens:
            agent.report.prepared(record)
    await agent.sweeper.run()
