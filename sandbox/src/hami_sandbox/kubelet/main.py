"""The kubelet stand-in, from start to end.

It can be killed at any moment: containers belong to the runtime and go on, device ids are in the
checkpoint, all else is in the API server. SIGTERM ends it alone, its containers go on as well.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib.metadata
import logging
import os
import platform
from collections.abc import Coroutine, Sequence
from pathlib import Path
from typing import Any

import msgspec

from hami.kube import access
from hami.kube.client import Client
from hami.kube.events import EventRecorder
from hami.node.layout import NodeLayout
from hami.serving import lifetime
from hami_sandbox import programs
from hami_sandbox.errors import SandboxError
from hami_sandbox.kubelet import node_document
from hami_sandbox.kubelet.attempts import ContainersView, Waits
from hami_sandbox.kubelet.decisions import Room
from hami_sandbox.kubelet.devices.manager import DeviceManager
from hami_sandbox.kubelet.environment import NodeFacts, References
from hami_sandbox.kubelet.log_server import LogServer
from hami_sandbox.kubelet.node_document import Machine
from hami_sandbox.kubelet.node_keeper import NodeKeeper
from hami_sandbox.kubelet.node_pods import NodePods
from hami_sandbox.kubelet.pod_worker import Tools
from hami_sandbox.kubelet.starting import Starter
from hami_sandbox.kubelet.status_writer import StatusWriter
from hami_sandbox.kubelet.statuses import RUNTIME
from hami_sandbox.kubelet.stopping import COMPONENT, PodRecorder
from hami_sandbox.kubelet.volumes import Volumes
from hami_sandbox.runtime.cri import serve_cri
from hami_sandbox.runtime.runtime import Runtime


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    node_name: str
    kubeconfig: str
    folder: Path
    cdi_dirs: tuple[Path, ...]
    cri_socket: Path
    runtime_dir: Path
    log_token_file: Path
    version: str
    labels: dict[str, str] = {}
    cpu: str = "64"
    memory: str = "512Gi"
    pods: int = 110
    waits: Waits = Waits()
    debug: bool = False


def parse_settings(arguments: Sequence[str]) -> Settings:
    parser = argparse.ArgumentParser(prog="hami_sandbox.kubelet", description=__doc__)
    waits = Waits()
    parser.add_argument("--node-name", required=True)
    parser.add_argument("--kubeconfig", required=True)
    parser.add_argument("--folder", type=Path, required=True, help="kubelet's own folder")
    parser.add_argument("--cdi-dirs", required=True, help="folders of CDI specs, by commas")
    parser.add_argument("--cri-socket", type=Path, required=True)
    parser.add_argument("--runtime-dir", type=Path, required=True, help="the containers' folder")
    parser.add_argument("--log-token-file", type=Path, required=True, help="who may read logs")
    parser.add_argument("--version", required=True, help="the version that the node shows")
    parser.add_argument("--labels", default="", help="labels of the node: k=v,...")
    parser.add_argument("--cpu", default="64")
    parser.add_argument("--memory", default="512Gi")
    parser.add_argument("--pods", type=int, default=110)
    parser.add_argument("--backoff-initial", type=float, default=waits.first, help="seconds")
    parser.add_argument("--backoff-max", type=float, default=waits.longest, help="seconds")
    parser.add_argument("--backoff-reset", type=float, default=waits.forgiven_after, help="seconds")
    parser.add_argument("--debug", action="store_true")
    given = parser.parse_args(arguments)
    return Settings(
        node_name=given.node_name,
        kubeconfig=given.kubeconfig,
        folder=given.folder,
        cdi_dirs=tuple(Path(each) for each in given.cdi_dirs.split(",") if each),
        cri_socket=given.cri_socket,
        runtime_dir=given.runtime_dir,
        log_token_file=given.log_token_file,
        version=given.version,
        labels=_labels(given.labels),
        cpu=given.cpu,
        memory=given.memory,
        pods=given.pods,
        waits=Waits(
            first=given.backoff_initial,
            longest=given.backoff_max,
            forgiven_after=given.backoff_reset,
        ),
        debug=given.debug,
    )


def _labels(text: str) -> dict[str, str]:
    made: dict[str, str] = {}
    for pair in filter(None, text.split(",")):
        key, found, value = pair.partition("=")
        if not found or not key:
            raise SandboxError(f"--labels {pair!r}", "is no label", "write them as key=value,...")
        made[key] = value
    return made


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
        # Readable when its other end is closed: the sandbox has ended.
        asyncio.get_running_loop().add_reader(lifeline, stop.set)
    runtime = Runtime(settings.runtime_dir, cdi_dirs=settings.cdi_dirs, lifeline=lifeline)
    runtime.remove_leftovers()
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
        references, recorder = References(client), PodRecorder(self.events)
        volumes = Volumes(folder / "pods", references, self.facts)
        starter = Starter(
            runtime=runtime,
            devices=self.devices,
            references=references,
            recorder=recorder,
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
                recorder=recorder,
                waits=settings.waits,
            )
        )

    def facts(self) -> NodeFacts:
        """Return the node's values for the downward API."""
        return NodeFacts(
            name=self.settings.node_name,
            address=node_document.ADDRESS,
            allocatable={"cpu": self.settings.cpu, "memory": self.settings.memory},
        )

    async def serve(self, stop: asyncio.Event) -> None:
        """Run until `stop` is set."""
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
        self.devices.add_handler(keeper.look)
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
