"""`hami agent`: builds its parts and runs them.

The agent put together: every part made once, and what it needs handed to it.

`hami agent`, from start to end.
The ledger is read first: a container that was prepared once can start before anything else works.
Then driver, API server, kubelet and runtime are each waited for by itself, and none of them holds
up the others. At the end the mark of late binding goes first, so that whoever binds from then on
takes the lock.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, NoReturn, cast

from hami.agent.allocator import Allocator
from hami.agent.binding_mode import BindingMode
from hami.agent.cards import device_ids
from hami.agent.cards.device_ids import ListedDevice
from hami.agent.cards.node_cards import NodeCards
from hami.agent.cards.node_config import NodeConfig, NodeConfigFile
from hami.agent.containers import cdi_spec, library
from hami.agent.containers.library import Library
from hami.agent.containers.nvidia_cdi import NvidiaSpecs
from hami.agent.containers.prepare import Injection, PrepareConfig, Preparer
from hami.agent.containers.state_files import StateFiles
from hami.agent.device_plugin import Preference, VgpuPlugin
from hami.agent.errors import AgentError
from hami.agent.grants import Grants, Keys, Resizing
from hami.agent.identity import Identity
from hami.agent.kubelet import checkpoint
from hami.agent.kubelet.checkpoint import CheckpointError
from hami.agent.kubelet.registration import Registration
from hami.agent.late_binding import LateBinding
from hami.agent.ledger import Ledger
from hami.agent.lock_binding import LockBinding
from hami.agent.metrics import Metrics
from hami.agent.node_status import NodeStatus
from hami.agent.pod_status import PodStatus, RefusedPods
from hami.agent.pods import NodePods
from hami.agent.reconciler import Adopter, Cleaner
from hami.agent.settings import Settings
from hami.agent.static_mig import MigPlugins
from hami.kube import access
from hami.kube.client import Client
from hami.kube.events import EventRecorder
from hami.node.layout import NodeLayout
from hami.node.ledger_record import LedgerRecord
from hami.serving import addresses, endpoints, lifetime, metrics, tracing
from hami.serving.grant_keys import KeyFolder
from hami.serving.http_server import Server
from hami.serving.lifetime import ServingError
from hami.vendors import device_config
from hami.vendors.device_config import DeviceConfig
from hami.vendors.table import Vendor
from hami.wire import errors as wire_errors
from hami.wire import node_marks, text_values
from hami.wire.objects import Pod

_log = logging.getLogger(__name__)

#: Part of the name of our socket, as of HAMi's plugin.
_SOCKET = "nvidia-{}"


def layout_of(settings: Settings) -> NodeLayout:
    return NodeLayout(
        hook_path=Path(settings.hook_path),
        state_dir=Path(settings.state_dir),
        run_dir=Path(settings.run_dir),
        cdi_dir=Path(settings.cdi_dir),
        kubelet_dir=Path(settings.kubelet_dir),
    )


class Agent:
    def __init__(
        self,
        settings: Settings,
        client: Client,
        *,
        config: DeviceConfig,
        node_config: NodeConfig,
        keys: Keys | None,
        tracer: tracing.Tracer,
    ) -> None:
        self.settings = settings
        self.layout = layout_of(settings)
        self.vendor = _nvidia(config)
        self.instruments = Metrics()
        resource = self.vendor.resources.count

        # What the API server knows.
        self.events = EventRecorder(client, component="hami-device-plugin", host=settings.node_name)
        self.pods = NodePods(client, settings.node_name, resync_interval=settings.resync_interval)
        self.node = NodeStatus(
            client,
            settings.node_name,
            self.events,
            resync_interval=settings.resync_interval,
        )

        # What the node has.
        self.cards = NodeCards(settings, node_config, on_change=self.tell, warn=self.node.warn)
        self.mode = BindingMode(
            self.layout,
            binding=settings.binding,
            runtime_endpoints=tuple(text_values.comma_list(settings.runtime_endpoint)),
            kubelet_version=self.node.kubelet_version,
            on_change=self.tell,
        )
        self.node.add_handler(lambda _old, _new: self.mode.look())
        self.ledger = Ledger(self.layout)
        self.library = Library(self.layout, library.find_built("libvgpu.so"))
        self.states = StateFiles(self.layout)
        self.nvidia = NvidiaSpecs(map(Path, text_values.comma_list(settings.nvidia_cdi_dirs)))
        nvidia = node_config.nvidia
        self.preparer = Preparer(
            self.layout,
            library=self.library,
            states=self.states,
            nvidia=self.nvidia,
            devices=self.cards.device,
            config=PrepareConfig(
                log_level=nvidia.lib_cuda_log_level,
                core_policy=nvidia.gpu_core_policy,
                disable_core_limit=nvidia.disable_core_limit,
                oversubscribe=nvidia.device_memory_scaling > 1,
                unscaled=nvidia.device_memory_scaling == 1,
                injection=cast("Injection", settings.driver_injection),
            ),
        )

        # Who gets what.
        self.shares = Allocator(
            self.ledger,
            self.preparer,
            devices=self.cards.devices,
            known=self.cards.known,
            sweep=self._sweep,
            init_done=self.pods.init_done,
        )
        self.shares.on_change = self.tell
        self.grants = Grants(
            settings.node_name,
            resources=self.vendor.resources,
            keys=keys,
            allow_unsigned=settings.allow_unsigned_grants,
            uncontrolled=frozenset(text_values.comma_list(settings.uncontrolled_namespaces)),
        )
        self.report = PodStatus(
            client,
            settings.node_name,
            to_allocate=self.vendor.annotations.to_allocate,
            release_lock=self._release_lock,
            told=self.shares.told,
        )
        self.refusals = RefusedPods(client, self.pods, self.events, evict=settings.evict_refused)
        self.adopting = Adopter(
            self.layout,
            resource,
            pods=self.pods,
            grants=self.grants,
            shares=self.shares,
            preparer=self.preparer,
            busy=self.states.busy,
            adopted=self._adopted,
        )
        self.sweeper = Cleaner(
            client,
            self.pods,
            records=self.ledger.records,
            remove=self.shares.remove,
            busy=self.states.busy,
            tidy=self.adopting.tidy,
        )
        self.resizing = Resizing(
            self.pods, self.grants, self.shares, self.events, limited=self.preparer.is_limited
        )

        # What kubelet asks.
        self.binder = LateBinding(
            identity=Identity(self.layout, resource),
            pods=self.pods,
            grants=self.grants,
            shares=self.shares,
            pod_wait=settings.pod_wait,
            prepared=self.report.prepared,
            refused=self.refusals.refused,
            unreadable=self.mode.unreadable,
            why_unhealthy=self.cards.why_unhealthy,
            tracer=tracer,
        )
        self.plugin = VgpuPlugin(
            resource,
            is_late=self.mode.is_late,
            binder=self.binder,
            lock_binding=LockBinding(
                client,
                settings.node_name,
                grants=self.grants,
                shares=self.shares,
                served=self.report.prepared,
                failed=self._failed,
                why_unhealthy=self.cards.why_unhealthy,
            ),
            preferring=Preference(self.pods, self.ledger),
            preferred_allocation=settings.enable_get_preferred_allocation
            and node_config.preferred_allocation,
            instruments=self.instruments,
        )
        self.link = Registration(self.layout, self.plugin, _socket(resource))
        self.instruments.damaged.set_function(lambda: len(self.ledger.damaged))
        self.instruments.registered.labels(resource).set_function(
            lambda: float(self.link.registered)
        )
        self.mig = MigPlugins(
            self.layout,
            parts=lambda: self.cards.inventory.static_mig,
            healthy=self.cards.health.is_healthy,
            cdi_name=self._cdi_name,
        )

    def tell(self) -> None:
        """Have kubelet and the API server hear of what is so now."""
        if not self.cards.asked:
            return  # an empty list would take every free device from kubelet for a moment
        offered = not self.cards.missing
        inventory = self.cards.inventory
        devices = inventory.devices if offered else ()
        held, used = self.shares.held()
        numa = self.cards.config.nvidia.enable_numa_topology
        listed: tuple[ListedDevice, ...] = (
            device_ids.listed(devices, held, used, numa=numa) if offered else ()
        )
        self.plugin.list.set(listed)
        self.mig.refresh()
        # Not before we know how we bind: a mark that comes and goes would cost pods their place.
        if self.mode.settled:
            late = self.mode.late and offered
            self.node.desired(
                inventory.register() if offered else None,
                scores=self.cards.scores or None if offered else None,
                late=late,
                lock_reason="" if late or not offered else self.mode.mode.reason,
                shares=inventory.shares(self.vendor)
                if offered and self.settings.advertise_shares
                else None,
            )
        self._count(late=self.mode.late)

    def _count(self, *, late: bool) -> None:
        told = self.instruments
        told.late.set(late)
        healthy = [device.health for device in self.cards.inventory.devices]
        told.cards.labels("healthy").set(sum(healthy))
        told.cards.labels("unhealthy").set(len(healthy) - sum(healthy))
        told.pods.set(len(self.ledger.records()))

    async def _sweep(self) -> bool:
        return await self.sweeper.sweep()

    def prune_libraries(self) -> None:
        """Remove libraries of earlier versions that no container was given."""
        specs = cdi_spec.libraries_in_use(self.layout)
        try:
            entries = checkpoint.read(self.layout.checkpoint).entries
            mounts = [mount for entry in entries for mount in entry.allocation().mounts]
        except CheckpointError:
            return  # nobody can tell what is in use
        if specs is not None:
            answers = {library.digest_of(self.layout, mount.host_path) for mount in mounts}
            self.library.prune(specs | answers)

    def why_not_ready(self) -> str:
        return self.cards.missing or self.link.problem

    def caches_missing(self) -> str:
        return "" if self.pods.synced else "this node's pods are not read yet"

    async def _release_lock(self, record: LedgerRecord | None, namespace: str, name: str) -> None:
        """Give the node's lock back; a pod that never needed it costs no request."""
        late = record is not None and all(token.cdi for token in record.tokens)
        if not late or self._locked_by(namespace, name):
            await self.node.release_lock(namespace, name)

    def _locked_by(self, namespace: str, name: str) -> bool:
        try:
            value = self.node.lock()
            return bool(value) and node_marks.decode_lock(value).held_by(namespace, name)
        except wire_errors.WireError:
            return False

    def _failed(self, pod: Pod) -> None:
        self.report.failed(uid=pod.uid, namespace=pod.namespace, name=pod.name)

    def _adopted(self, record: LedgerRecord) -> None:
        self.report.prepared(record)
        self.resizing.remind(record.uid)

    def _cdi_name(self, uuid: str) -> str:
        if self.settings.driver_injection == "runtime" or not self.mode.late:
            return ""
        return self.nvidia.qualified_name(uuid)


def _nvidia(config: DeviceConfig) -> Vendor:
    (vendor,) = (vendor for vendor in config.vendors if vendor.section == "nvidia")
    return vendor


def _socket(resource: str) -> str:
    return _SOCKET.format(resource.rpartition("/")[2])


USER_AGENT = "hami-agent"


async def run(settings: Settings) -> None:
    """Run until SIGTERM or SIGINT."""
    stop = lifetime.stop_asked()
    lifetime.bound()
    config = device_config.load_or_built_in(settings.device_config_file)
    for warning in config.warnings:
        _log.warning("device configuration", extra={"warning": warning})
    keys = KeyFolder(settings.grant_key_dir) if settings.grant_key_dir else None
    if keys is None:
        _log.warning("grants are not checked: --grant-key-dir is empty")
    tracer = tracing.Tracer.from_endpoint(settings.otlp_endpoint, USER_AGENT)
    file = NodeConfigFile(settings, config.nvidia)
    async with access.client(settings, user_agent=USER_AGENT) as client:
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
    checks = endpoints.Health({"cards": agent.why_not_ready, "caches": agent.caches_missing})
    server = Server(
        [metrics.route(agent.instruments.registry), *endpoints.health_routes(checks.ready)],
        drain_timeout=1,
    )
    async with asyncio.TaskGroup() as group:
        if settings.metrics_bind_address:
            await server.start(*addresses.parse(settings.metrics_bind_address))
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
        "pods": agent.pods.informer.run(),
        "node": agent.node.run(),
        "binding mode": agent.mode.run(),
        "kubelet": _forever(agent.link.run()),
        "MIG resources": agent.mig.run(),
        "telling pods": agent.report.run(),
        "events": agent.events.run(),
        "sweeping": _after_sync(agent),
        "resizing": _resize(agent),
        "memory": lifetime.keep_giving_back(),
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
    await agent.pods.informer.wait_synced()
    for record in agent.ledger.records():
        if record.tokens:
            agent.report.prepared(record)
    await agent.sweeper.run()
