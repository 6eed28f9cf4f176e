"""`hami agent`: builds its parts in dependency order and runs them.

The ledger is read first: a container that was prepared once can start before anything else works.
Then driver, API server, kubelet and runtime are waited for independently; none delays the others.
At the end the node is taken out of service, kubelet is served until it has taken up every pod that
is bound to the node, and then the mark of late binding is removed.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, cast

from hami.agent.advertise import Advertiser
from hami.agent.allocator import Allocator
from hami.agent.binding_mode import BindingMode
from hami.agent.cards.context_costs import ContextCosts
from hami.agent.cards.device_ids import ListedDevice
from hami.agent.cards.node_cards import NodeCards
from hami.agent.cards.node_config import NodeConfigFile
from hami.agent.closed_cards import ClosedCards
from hami.agent.containers import library
from hami.agent.containers.library import Library
from hami.agent.containers.nvidia_cdi import NvidiaSpecs
from hami.agent.containers.prepare import Injection, PrepareConfig, Preparer
from hami.agent.containers.state_files import StateFiles
from hami.agent.device_plugin import Preference, VgpuPlugin
from hami.agent.drain import Drain
from hami.agent.errors import AgentError
from hami.agent.grant_annotations import GrantAnnotations
from hami.agent.grants import Grants, Keys
from hami.agent.identity import Identity
from hami.agent.kubelet.plugin_server import DeviceList
from hami.agent.kubelet.registration import Registration
from hami.agent.late_binding import LateBinding
from hami.agent.ledger import Ledger
from hami.agent.leftover_pods import LeftoverPods
from hami.agent.lock_binding import LockBinding
from hami.agent.lost_cards import LostCards
from hami.agent.metrics import Metrics
from hami.agent.node_status import NodeStatus
from hami.agent.pod_status import PodStatus, RefusedPods
from hami.agent.pods import NodePods
from hami.agent.reconciler import Reconciler
from hami.agent.resize import Resizer
from hami.agent.settings import Settings
from hami.agent.shrink import Shrinks
from hami.agent.static_mig import MigPlugins
from hami.kube import access
from hami.kube.client import Client
from hami.kube.events import EventRecorder
from hami.node.layout import NodeLayout
from hami.serving import addresses, endpoints, lifetime, metrics, tracing
from hami.serving.grant_keys import KeyFolder
from hami.serving.http_server import Server
from hami.serving.lifetime import ServingError
from hami.vendors import device_config, table
from hami.vendors.device_config import DeviceConfig
from hami.wire import text_values

_log = logging.getLogger(__name__)

USER_AGENT = "hami-agent"
#: Part of the name of our socket, as of HAMi's plugin.
_SOCKET = "nvidia-{}"


class Agent:
    """All parts of an agent. Each gets what it needs when it is built."""

    def __init__(
        self,
        settings: Settings,
        client: Client,
        *,
        config: DeviceConfig,
        config_file: NodeConfigFile,
        keys: Keys | None,
        tracer: tracing.Tracer,
    ) -> None:
        node_name = settings.node_name
        node_config = config_file.config
        self.settings = settings
        self.config_file = config_file
        self.layout = layout_of(settings)
        self.metrics = Metrics()
        vendor = table.nvidia(config.vendors)
        resource = vendor.resources.count
        others = table.lists_under_lock(config.vendors, vendor)
        injection = cast("Injection", settings.driver_injection)

        # The API server's view.
        self.events = EventRecorder(client, component="hami-device-plugin", host=node_name)
        self.pods = NodePods(client, node_name, resync_interval=settings.resync_interval)
        self.node_status = NodeStatus(
            client, node_name, self.events, resync_interval=settings.resync_interval
        )

        # The node's own state.
        self.context_costs = ContextCosts(self.layout.context_costs)
        self.cards = NodeCards(
            settings,
            config_file,
            self.node_status,
            context_costs=self.context_costs,
            released=self.layout.released_cards,
        )
        self.mode = BindingMode(
            self.layout,
            self.node_status,
            binding=settings.binding,
            runtime_endpoints=tuple(text_values.comma_list(settings.runtime_endpoint)),
        )
        self.ledger = Ledger(self.layout)
        self.library = Library(self.layout, library.find_built("libvgpu.so"))
        self.states = StateFiles(self.layout)
        self.nvidia = NvidiaSpecs(map(Path, text_values.comma_list(settings.nvidia_cdi_dirs)))
        self.preparer = Preparer(
            self.layout,
            library=self.library,
            states=self.states,
            nvidia=self.nvidia,
            devices=self.cards.device,
            context_cost=self.context_costs.cost,
            config=PrepareConfig.of(node_config.nvidia, injection=injection),
        )

        # Allocation.
        self.allocator = Allocator(self.ledger, self.preparer, cards=self.cards, pods=self.pods)
        self.grants = Grants(
            node_name,
            resources=vendor.resources,
            keys=keys,
            allow_unsigned=settings.allow_unsigned_grants,
            uncontrolled=frozenset(text_values.comma_list(settings.uncontrolled_namespaces)),
            signed=table.device_lists(config.vendors),
        )
        self.pod_status = PodStatus(
            client,
            self.node_status,
            self.allocator,
            to_allocate=vendor.annotations.to_allocate,
            others=others,
        )
        self.refused_pods = RefusedPods(client, self.pods, self.events, node=self.node_status.name)
        proc_dir = Path(settings.proc_dir)
        self.leftovers = LeftoverPods(self.layout, self.states, proc_dir=proc_dir)
        self.reconciler = Reconciler(
            client,
            self.layout,
            resource,
            pods=self.pods,
            grants=self.grants,
            allocator=self.allocator,
            preparer=self.preparer,
            states=self.states,
            library=self.library,
            leftovers=self.leftovers,
            pod_status=self.pod_status,
        )
        self.closed_cards = ClosedCards(
            self.layout,
            node=self.node_status,
            cards=self.cards,
            allocator=self.allocator,
            pods=self.pods,
            leftovers=self.leftovers,
            proc_dir=proc_dir,
        )
        self.resizer = Resizer(
            pods=self.pods,
            grants=self.grants,
            allocator=self.allocator,
            reconciler=self.reconciler,
            preparer=self.preparer,
            events=self.events,
        )

        self.shrinks = Shrinks(
            client, self.layout, pods=self.pods, allocator=self.allocator, cards=self.cards
        )
        self.lost_cards = LostCards(
            cards=self.cards,
            allocator=self.allocator,
            pods=self.pods,
            events=self.events,
            node=self.node_status,
        )
        self.grant_annotations = GrantAnnotations(
            client,
            node_name,
            pods=self.pods,
            ledger=self.ledger,
            grants=self.grants,
            events=self.events,
            metrics=self.metrics,
            active=self.allocator.active,
        )

        # kubelet's calls.
        self.device_list: DeviceList[ListedDevice] = DeviceList()
        self.late_binding = LateBinding(
            identity=Identity(self.layout, resource),
            pods=self.pods,
            cards=self.cards,
            grants=self.grants,
            allocator=self.allocator,
            reconciler=self.reconciler,
            mode=self.mode,
            pod_status=self.pod_status,
            refused_pods=self.refused_pods,
            pod_wait=settings.pod_wait,
            tracer=tracer,
        )
        self.preference = Preference(self.pods, self.ledger)
        self.plugin = VgpuPlugin(
            resource,
            device_list=self.device_list,
            mode=self.mode,
            late_binding=self.late_binding,
            lock_binding=LockBinding(
                client,
                node_name,
                cards=self.cards,
                grants=self.grants,
                allocator=self.allocator,
                reconciler=self.reconciler,
                pod_status=self.pod_status,
                pods=self.pods,
                to_allocate=vendor.annotations.to_allocate,
                others=others,
            ),
            preference=self.preference,
            preferred_allocation=settings.enable_get_preferred_allocation
            and node_config.preferred_allocation,
            metrics=self.metrics,
        )
        self.registration = Registration(self.layout, self.plugin, _socket(resource))
        self.mig_plugins = MigPlugins(
            self.layout,
            cards=self.cards,
            mode=self.mode,
            nvidia=self.nvidia,
            injection=injection,
        )

        # What others see.
        self.advertiser = Advertiser(
            vendor,
            cards=self.cards,
            mode=self.mode,
            allocator=self.allocator,
            device_list=self.device_list,
            registration=self.registration,
            mig_plugins=self.mig_plugins,
            node=self.node_status,
            metrics=self.metrics,
            grants=self.grants,
            closed=self.closed_cards,
            advertise_shares=settings.advertise_shares,
        )
        self.drain = Drain(
            self.layout,
            resource,
            pods=self.pods,
            ledger=self.ledger,
            node=self.node_status,
            advertiser=self.advertiser,
            registration=self.registration,
            mig_plugins=self.mig_plugins,
            timeout=settings.drain_timeout,
        )
        self.metrics.read_at_scrape(self.ledger, self.registration)
        self._replaced = False
        self.registration.add_handler(self._place_changed)

    def _place_changed(self) -> None:
        """Write nothing while another agent serves in our place; then read what it wrote."""
        returned = self._replaced and not self.registration.taken_over
        self._replaced = self.registration.taken_over
        if self._replaced:
            self.allocator.active.clear()
        if returned:
            self.ledger.load()
            self.allocator.active.set()
            self.advertiser.update()
            self.reconciler.request()
            self.closed_cards.request()

    def why_not_ready(self) -> str:
        return self.cards.missing or self.registration.problem

    def why_not_synced(self) -> str:
        return "" if self.pods.synced else "this node's pods are not read yet"


def layout_of(settings: Settings) -> NodeLayout:
    return NodeLayout(
        hook_path=Path(settings.hook_path),
        state_dir=Path(settings.state_dir),
        run_dir=Path(settings.run_dir),
        cdi_dir=Path(settings.cdi_dir),
        kubelet_dir=Path(settings.kubelet_dir),
    )


def _socket(resource: str) -> str:
    return _SOCKET.format(resource.rpartition("/")[2])


def key_folder(settings: Settings) -> KeyFolder | None:
    """Return the keys of grants; None: they are not verified."""
    if not settings.grant_key_dir:
        return None
    forms = text_values.comma_list(settings.accept_grant_forms)
    return KeyFolder(settings.grant_key_dir, forms=forms, signs=False)


async def run(settings: Settings) -> None:
    """Run until SIGTERM or SIGINT."""
    stop = lifetime.stop_asked()
    lifetime.bound()
    config = device_config.load_or_built_in(settings.device_config_file)
    config.log_to(_log)
    keys = key_folder(settings)
    if keys is None:
        _log.warning("grants are not verified: --grant-key-dir is empty")
    tracer = tracing.Tracer.from_endpoint(settings.otlp_endpoint, USER_AGENT)
    config_file = NodeConfigFile(settings, config.nvidia)
    async with access.client(settings, user_agent=USER_AGENT) as client:
        agent = Agent(
            settings, client, config=config, config_file=config_file, keys=keys, tracer=tracer
        )
        try:
            await serve(agent, stop)
        finally:
            await tracer.close()
    _log.info("stopped")


async def serve(agent: Agent, stop: asyncio.Event) -> None:
    """Run all parts until `stop` is set, then end them in order."""
    settings = agent.settings
    try:
        agent.ledger.load()
        agent.library.install()
    except AgentError as error:
        raise ServingError(str(error)) from error
    agent.reconciler.prune_libraries()
    checks = endpoints.Health({"cards": agent.why_not_ready, "caches": agent.why_not_synced})
    server = Server(
        [metrics.route(agent.metrics.registry), *endpoints.health_routes(checks.ready)],
        drain_timeout=1,
    )
    async with asyncio.TaskGroup() as group:
        if settings.metrics_bind_address:
            await server.start(*addresses.parse(settings.metrics_bind_address))
        tasks = lifetime.start(group, _tasks(agent, stop))
        await stop.wait()
        if not agent.registration.taken_over:
            await agent.drain.run()
        if not agent.registration.taken_over:  # nor in the meantime
            await agent.node_status.withdraw()
        await agent.registration.stop()
        await agent.mig_plugins.stop()
        await server.stop()
        for task in tasks:
            task.cancel()


def _tasks(agent: Agent, stop: asyncio.Event) -> dict[str, Coroutine[Any, Any, None]]:
    return {
        "cards": lifetime.end_in_order(agent.cards.run(), stop),
        "node configuration": agent.config_file.watch(stop),
        "restore containers": agent.reconciler.restore(),
        "pods": agent.pods.informer.run(),
        "node": agent.node_status.run(),
        "binding mode": agent.mode.run(),
        "kubelet": lifetime.then_wait(agent.registration.run()),
        "MIG resources": agent.mig_plugins.run(),
        "pod status": agent.pod_status.run(),
        "events": agent.events.run(),
        "reconcile": agent.reconciler.run(),
        "resize": agent.resizer.run(),
        "shrink": agent.shrinks.run(),
        "closed cards": agent.closed_cards.run(),
        "grants of pods": agent.grant_annotations.run(),
        "grant keys": agent.advertiser.follow_keys(),
        "memory": lifetime.keep_giving_back(),
    }
