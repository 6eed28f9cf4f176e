"""The agent put together: every part made once, and what it needs handed to it."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import cast

from hami.agent.adopting import Adopting
from hami.agent.binding_mode import BindingMode
from hami.agent.cards import device_ids
from hami.agent.cards.device_ids import ListedDevice
from hami.agent.cards.node_cards import NodeCards
from hami.agent.cards.node_config import NodeConfig
from hami.agent.containers import cdi_spec, library
from hami.agent.containers.library import Library
from hami.agent.containers.nvidia_cdi import NvidiaSpecs
from hami.agent.containers.prepare import Injection, PrepareConfig, Preparer
from hami.agent.containers.state_files import StateFiles
from hami.agent.grants import Grants, Keys
from hami.agent.identity import Identity
from hami.agent.instruments import Instruments
from hami.agent.kubelet import checkpoint
from hami.agent.kubelet.checkpoint import CheckpointError
from hami.agent.kubelet.kubelet_link import KubeletLink
from hami.agent.late_binding import Binder
from hami.agent.ledger import Ledger
from hami.agent.lock_binding import LockBinding
from hami.agent.node_report import NodeReport
from hami.agent.pod_report import PodReport
from hami.agent.pods import NodePods
from hami.agent.preferring import Preferring
from hami.agent.refusals import Refusals
from hami.agent.resizing import Resizing
from hami.agent.settings import Settings
from hami.agent.shares import Shares
from hami.agent.static_mig import MigPlugins
from hami.agent.sweeping import Sweeper
from hami.agent.vgpu_plugin import VgpuPlugin
from hami.kube.client import Client
from hami.kube.events import EventRecorder
from hami.native import libraries
from hami.node.layout import NodeLayout
from hami.node.record import Record
from hami.serving import tracing
from hami.vendors.device_config import DeviceConfig
from hami.vendors.row import Vendor
from hami.wire import comma_list, node_lock
from hami.wire import errors as wire_errors
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
        self.instruments = Instruments()
        resource = self.vendor.resources.count

        # What the API server knows.
        self.events = EventRecorder(client, component="hami-device-plugin", host=settings.node_name)
        self.pods = NodePods(client, settings.node_name, resync_interval=settings.resync_interval)
        self.node = NodeReport(
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
            runtime_endpoints=tuple(comma_list.tokens(settings.runtime_endpoint)),
            kubelet_version=self.node.kubelet_version,
            on_change=self.tell,
        )
        self.node.subscribe(lambda _old, _new: self.mode.look())
        self.ledger = Ledger(self.layout)
        self.library = Library(self.layout, libraries.library("libvgpu.so"))
        self.states = StateFiles(self.layout)
        self.nvidia = NvidiaSpecs(map(Path, comma_list.tokens(settings.nvidia_cdi_dirs)))
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
        self.shares = Shares(
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
            uncontrolled=frozenset(comma_list.tokens(settings.uncontrolled_namespaces)),
        )
        self.report = PodReport(
            client,
            settings.node_name,
            to_allocate=self.vendor.annotations.to_allocate,
            release_lock=self._release_lock,
            told=self.shares.told,
        )
        self.refusals = Refusals(client, self.pods, self.events, evict=settings.evict_refused)
        self.adopting = Adopting(
            self.layout,
            resource,
            pods=self.pods,
            grants=self.grants,
            shares=self.shares,
            preparer=self.preparer,
            busy=self.states.busy,
            adopted=self._adopted,
        )
        self.sweeper = Sweeper(
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
        self.binder = Binder(
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
            preferring=Preferring(self.pods, self.ledger),
            preferred_allocation=settings.enable_get_preferred_allocation
            and node_config.preferred_allocation,
            instruments=self.instruments,
        )
        self.link = KubeletLink(self.layout, self.plugin, _socket(resource))
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

    async def _release_lock(self, record: Record | None, namespace: str, name: str) -> None:
        """Give the node's lock back; a pod that never needed it costs no request."""
        late = record is not None and all(token.cdi for token in record.tokens)
        if not late or self._locked_by(namespace, name):
            await self.node.release_lock(namespace, name)

    def _locked_by(self, namespace: str, name: str) -> bool:
        try:
            value = self.node.lock()
            return bool(value) and node_lock.decode(value).held_by(namespace, name)
        except wire_errors.WireError:
            return False

    def _failed(self, pod: Pod) -> None:
        self.report.failed(uid=pod.uid, namespace=pod.namespace, name=pod.name)

    def _adopted(self, record: Record) -> None:
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
