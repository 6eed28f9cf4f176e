"""The kubelet stand-in, from start to end.

It can be killed at any moment: containers are the runtime's and go on, device ids are in the
checkpoint, all else is in the API server. SIGTERM ends it alone, its containers go on as well.
"""

from __future__ import annotations

import asyncio
import importlib.metadata
import logging
import os
import platform
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

from hami.kube import access
from hami.kube.client import Client
from hami.kube.events import EventRecorder
from hami.node.layout import NodeLayout
from hami.serving import lifetime
from hami_sandbox import programs
from hami_sandbox.kubelet import node_document
from hami_sandbox.kubelet.containers_view import ContainersView
from hami_sandbox.kubelet.decisions import Room
from hami_sandbox.kubelet.devices.manager import DeviceManager
from hami_sandbox.kubelet.environment import NodeFacts
from hami_sandbox.kubelet.log_server import LogServer
from hami_sandbox.kubelet.node_document import Machine
from hami_sandbox.kubelet.node_keeper import NodeKeeper
from hami_sandbox.kubelet.node_pods import NodePods
from hami_sandbox.kubelet.pod_worker import Tools
from hami_sandbox.kubelet.references import References
from hami_sandbox.kubelet.settings import Settings
from hami_sandbox.kubelet.starting import Starter
from hami_sandbox.kubelet.status_writer import StatusWriter
from hami_sandbox.kubelet.statuses import RUNTIME
from hami_sandbox.kubelet.stopping import COMPONENT, Teller
from hami_sandbox.kubelet.volumes import Volumes
from hami_sandbox.runtime.cri import serve_cri
from hami_sandbox.runtime.runtime import Runtime

_log = logging.getLogger(__name__)

USER_AGENT = "hami-sandbox-kubelet"
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_STORAGE = "100Gi"
_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}


async def run(settings: Settings) -> None:
    """Run until SIGTERM or SIGINT."""
    stop = lifetime.stop_asked()
    named = os.environ.get(programs.LIFELINE)
    lifeline = int(named) if named else None
    if lifeline is not None:
        # It can be read when nobody holds its other end: the sandbox is over.
        asyncio.get_running_loop().add_reader(lifeline, stop.set)
    runtime = Runtime(settings.runtime_dir, cdi_dirs=settings.cdi_dirs, lifeline=lifeline)
    runtime.sweep()
    _log.info("containers", extra={"isolation": runtime.isolation, "why": runtime.isolation_reason})
    async with Client(access.find(settings.kubeconfig), user_agent=USER_AGENT) as client:
        cri = await serve_cri(settings.cri_socket, runtime)
        try:
            await Kubelet(settings, client, runtime).serve(stop)
        finally:
            await cri.stop(None)
            await runtime.close()
    _log.info("stopped")


class Kubelet:
    """All parts of one node's kubelet."""

    def __init__(self, settings: Settings, client: Client, runtime: Runtime) -> None:
        self.settings = settings
        self.runtime = runtime
        folder = settings.folder
        logs = folder / "logs"
        self._fresh = not NodeLayout(kubelet_dir=folder).checkpoint.exists()
        self.pods = NodePods(logs=logs)
        self.view = ContainersView(runtime, on_change=self.pods.poke)
        self.devices = DeviceManager(
            folder, active_pods=self.pods.active, sources_ready=lambda: self.pods.ready
        )
        self.reflector = self.pods.reflector(client, settings.node_name)
        self.events = EventRecorder(client, component=COMPONENT, host=settings.node_name)
        self.statuses = StatusWriter(client)
        token = settings.log_token_file.read_text().strip()
        self.log_server = LogServer(self.pods, self.view, token=token)
        self._client = client
        references, teller = References(client), Teller(self.events)
        volumes = Volumes(folder / "pods", references, self.facts)
        starter = Starter(
            runtime=runtime,
            devices=self.devices,
            references=references,
            teller=teller,
            logs=logs,
            node=self.facts,
        )
        self.pods.attach(
            Tools(
                runtime=runtime,
                view=self.view,
                starter=starter,
                volumes=volumes,
                statuses=self.statuses,
                teller=teller,
                waits=settings.waits,
            )
        )

    def facts(self) -> NodeFacts:
        """Return what pods can be told of their node."""
        return NodeFacts(
            name=self.settings.node_name,
            address=node_document.ADDRESS,
            allocatable={"cpu": self.settings.cpu, "memory": self.settings.memory},
        )

    async def serve(self, stop: asyncio.Event) -> None:
        """Run until told to stop."""
        self.view.refresh()
        running = {
            (uid, name)
            for uid in self.view.uids()
            for name, history in self.view.of(uid).items()
            if history.latest is not None and history.latest.running
        }
        await self.devices.start(running)
        await self.log_server.start(node_document.ADDRESS)
        try:
            async with asyncio.TaskGroup() as group:
                tasks = lifetime.start(group, self._works())
                await stop.wait()
                for task in tasks:
                    task.cancel()
        finally:
            await self.log_server.stop()
            await self.devices.stop()
            await self.statuses.stop()

    def _works(self) -> dict[str, Coroutine[Any, Any, None]]:
        settings = self.settings
        keeper = NodeKeeper(self._client, self._machine(), self.devices, fresh=self._fresh)
        self.devices.subscribe(keeper.look)
        room = Room(settings.cpu, settings.memory, settings.pods)
        return {
            "node": keeper.run(),
            "pods": self.pods.run(self.devices, room),
            "watch of pods": self.reflector.run(),
            "containers": self.view.run(),
            "events": self.events.run(),
        }

    def _machine(self) -> Machine:
        settings, host = self.settings, platform.uname()
        return Machine(
            name=settings.node_name,
            version=settings.version,
            architecture=_ARCHITECTURES.get(host.machine, host.machine),
            kernel=host.release,
            boot_id=_BOOT_ID.read_text().strip(),
            runtime=f"{RUNTIME}://{importlib.metadata.version('hami')}",
            cpu=settings.cpu,
            memory=settings.memory,
            storage=_STORAGE,
            pods=settings.pods,
            labels=settings.labels,
            port=self.log_server.port,
        )
