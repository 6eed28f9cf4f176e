"""A whole cluster on one machine, from start to removal.

    async with Sandbox(plan, say=print) as sandbox:
        sandbox.kubeconfig        # for kubectl
        sandbox.client            # the administrator's client
        sandbox.programs          # every program: its process, its log; a killed one restarts

The product runs as on a real cluster: `hami scheduler` serves kube-scheduler and the API server,
`hami agent` and `hami monitor` run on every node with cards. Stand-ins are Kubernetes itself
(`apiserver`, `kube_scheduler`, `kubelet`), the driver (native/fakegpu) and, for large fleets,
nodes (`fleet`). Everything is in one folder and is removed with it: programs first, then
containers, mounts and files.
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
import secrets
import shutil
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

from hami.agent.containers import state_files
from hami.installation import certificates
from hami.kube import access as kube_access
from hami.kube.client import Client
from hami.serving.grant_keys import PUBLIC_CURRENT, SIGNING_CURRENT
from hami.serving.grant_signature import KEY_BYTES, SigningKey
from hami_sandbox import access, api_objects, node_programs, process_view, programs, readiness
from hami_sandbox.errors import SandboxError
from hami_sandbox.node_programs import SandboxNode
from hami_sandbox.plan import Plan, cards_text
from hami_sandbox.programs import Program, Programs
from hami_sandbox.runtime import isolation

_MOUNTINFO = Path("/proc/self/mountinfo")
_POINT = 4


APISERVER, HAMI_SCHEDULER, KUBE_SCHEDULER, FLEET = (
    "apiserver",
    "hami-scheduler",
    "kube-scheduler",
    "fleet",
)
#: The namespace of hami's own lease.
SYSTEM_NAMESPACE = "kube-system"
SCHEDULER_NAME = "hami-scheduler"

_LIFETIME = dt.timedelta(days=30)
#: A socket's path has at most 107 bytes, and our longest ones are deep below the folder.
_LONGEST_FOLDER = 40


class Sandbox:
    def __init__(
        self,
        plan: Plan,
        *,
        folder: Path | None = None,
        say: Callable[[str], None] = lambda _: None,
        snapshot: Path | None = None,
        keep_logs: Path | None = None,
    ) -> None:
        plan.check()
        self.plan = plan
        self._wanted_folder = folder
        self._say = say
        self._snapshot = snapshot
        self._kept_logs = keep_logs
        self._stack = contextlib.AsyncExitStack()
        self._programs: Programs | None = None
        self._client: Client | None = None
        self.folder = Path()
        self.nodes: Mapping[str, SandboxNode] = {}
        self.scheduler_url = ""
        #: How containers are isolated, in a sentence.
        self.isolation = ""

    @property
    def kubeconfig(self) -> Path:
        return self.folder / "kubeconfig"

    @property
    def client(self) -> Client:
        assert self._client is not None, "the sandbox does not run"
        return self._client

    @property
    def programs(self) -> Mapping[str, Program]:
        assert self._programs is not None, "the sandbox does not run"
        return self._programs.all

    @property
    def logs(self) -> Path:
        return self.folder / "logs"

    async def __aenter__(self) -> Self:
        try:
            await self._start()
        except BaseException:
            await self._stack.aclose()
            raise
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._stack.aclose()

    async def _start(self) -> None:
        since = api_objects.stamp(api_objects.now())
        self.folder = _folder(self._wanted_folder)
        self._stack.callback(_remove, self.folder)
        if self._kept_logs is not None:
            self._stack.callback(_keep, self.logs, self._kept_logs)
        self._programs = Programs(self.logs)
        self._stack.push_async_callback(self._programs.close)
        found = await asyncio.to_thread(isolation.detect)
        self.isolation = found.sentence
        self._say(self.isolation)
        await self._start_apiserver()
        await self._start_scheduler()
        await self._start_nodes()
        if self.plan.simulated:
            await self._start_fleet()
        self._say("waiting for the nodes to offer their cards, and for the scheduler")
        await readiness.await_ready(
            self.client,
            nodes={name: node.resources() for name, node in self.nodes.items()},
            since=since,
            scheduler_url=self.scheduler_url,
            authority=self.folder / "scheduler" / "ca.crt",
            programs=self.programs.values(),
        )

    async def _start_apiserver(self) -> None:
        self._say("starting the API server")
        folder = self.folder / "access"
        access.make(folder)
        (port,) = programs.free(1)  # the same after a restart: all kubeconfigs have it
        program = await self._run(
            APISERVER,
            *("-m", "hami_sandbox.apiserver"),
            f"--bind=127.0.0.1:{port}",
            f"--folder={folder}",
            f"--kubeconfig={self.kubeconfig}",
            f"--snapshot={self._snapshot or self.folder / 'snapshot.json'}",
        )
        await readiness.await_file(self.kubeconfig, program)
        self._client = Client(
            kube_access.find(str(self.kubeconfig)), user_agent="hami-sandbox", timeout=30
        )
        self._stack.push_async_callback(self._client.close)

    async def _start_scheduler(self) -> None:
        self._say("starting the scheduler and its extender")
        keys = self.grant_keys
        for folder in (keys, self.grant_public_keys):
            folder.mkdir()
        key = SigningKey(secrets.token_bytes(KEY_BYTES))
        (keys / SIGNING_CURRENT).write_bytes(key.secret)
        (self.grant_public_keys / PUBLIC_CURRENT).write_bytes(key.public.content)
        pair = certificates.issue(access.LOOPBACK, lifetime=_LIFETIME, now=dt.datetime.now(dt.UTC))
        folder = self.folder / "scheduler"
        folder.mkdir()
        (folder / "ca.crt").write_bytes(pair.authorities)
        (folder / "tls.crt").write_bytes(pair.certificate)
        (folder / "tls.key").write_bytes(pair.key)
        port, metrics_port = programs.free(2)
        self.scheduler_url = f"https://127.0.0.1:{port}"
        await self._run(
            HAMI_SCHEDULER,
            *("-m", "hami", "scheduler"),
            f"--kubeconfig={self.kubeconfig}",
            f"--http_bind=127.0.0.1:{port}",
            f"--metrics-bind-address=127.0.0.1:{metrics_port}",
            f"--cert_file={folder / 'tls.crt'}",
            f"--key_file={folder / 'tls.key'}",
            f"--scheduler-name={SCHEDULER_NAME}",
            f"--grant-key-dir={keys}",
            f"--leader-elect-resource-name={SCHEDULER_NAME}",
            f"--leader-elect-resource-namespace={SYSTEM_NAMESPACE}",
            "--leader-elect=true",
            "--device-config-file=",
            "--high-priority-classes=gpu-urgent",
            "--enable-iluvatar=true",
        )
        config = folder / "kube-scheduler.yaml"
        await self._configure(config, folder / "ca.crt")
        await self._run(KUBE_SCHEDULER, "-m", "hami_sandbox.kube_scheduler", f"--config={config}")

    @property
    def grant_keys(self) -> Path:
        """Return the folder of the key that signs grants; only the scheduler reads it."""
        return self.folder / "grant-keys"

    @property
    def grant_public_keys(self) -> Path:
        """Return the folder of its public key, which the agents read."""
        return self.folder / "grant-public-keys"

    async def _configure(self, config: Path, authority: Path) -> None:
        """Write kube-scheduler's configuration with `hami scheduler config`."""
        command = programs.python(
            *("-m", "hami", "scheduler", "config"),
            f"--kube-version={api_objects.KUBERNETES_MINOR}",
            f"--url={self.scheduler_url}",
            f"--ca-file={authority}",
            f"--scheduler-name={SCHEDULER_NAME}",
            f"--kubeconfig={self.kubeconfig}",
            f"--lease-name={SCHEDULER_NAME}",
            f"--lease-namespace={SYSTEM_NAMESPACE}",
            "--enable-iluvatar=true",
        )
        process = await asyncio.create_subprocess_exec(
            *command,
            env=programs.environment(),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        written, complaint = await process.communicate()
        if process.returncode:
            raise SandboxError(
                "hami scheduler config",
                complaint.decode().strip(),
                "this is a bug in hami; report it with this text",
            )
        await asyncio.to_thread(config.write_bytes, written)

    async def _start_nodes(self) -> None:
        free = iter(programs.free(2 * len(self.plan.nodes)))
        made = {}
        for index, plan in enumerate(self.plan.nodes):
            node = node_programs.make(
                self.folder / f"n{index}", plan, agent_port=next(free), monitor_port=next(free)
            )
            made[plan.name] = node
            self._say(f"starting node {plan.name}: {_cards((*plan.cards, *plan.others))}")
            await self._start_node(node)
        self.nodes = made
        views = {node.folders.containers: node.folders.proc for node in made.values()}
        keeping = asyncio.create_task(process_view.keep(process_view.ProcessViews(views)))
        self._stack.callback(keeping.cancel)

    async def _start_node(self, node: SandboxNode) -> None:
        assert self._programs is not None
        token = self.folder / "access" / access.KUBELET_TOKEN
        env = node_programs.driver_environment(node)
        kubelet = node_programs.kubelet(node, self.kubeconfig, token)
        await self._programs.start(f"{node.name}/kubelet", kubelet)
        if node.plan.others:
            simulated = node_programs.simulate_devices(node, self.kubeconfig)
            await self._programs.start(f"{node.name}/simulated-devices", simulated)
        if not node.plan.cards:
            return
        agent = node_programs.agent(node, self.kubeconfig, self.grant_public_keys)
        await self._programs.start(f"{node.name}/agent", agent, env)
        monitor = node_programs.monitor(node, self.kubeconfig)
        await self._programs.start(f"{node.name}/monitor", monitor, env)

    async def _start_fleet(self) -> None:
        self._say(f"starting {self.plan.simulated} simulated nodes")
        ready = self.folder / "fleet-ready"
        program = await self._run(
            FLEET,
            *("-m", "hami_sandbox.fleet"),
            f"--kubeconfig={self.kubeconfig}",
            f"--nodes={self.plan.simulated}",
            f"--cards={cards_text(self.plan.simulated_cards)}",
            f"--ready-file={ready}",
        )
        await readiness.await_file(ready, program)

    async def _run(self, name: str, *arguments: str) -> Program:
        assert self._programs is not None
        return await self._programs.start(name, programs.python(*arguments))


def _cards(cards: tuple[tuple[str, int], ...]) -> str:
    return ", ".join(f"{count} x {model}" for model, count in cards)


def _folder(wanted: Path | None) -> Path:
    if wanted is None:
        return Path(tempfile.mkdtemp(prefix="hami-", dir=_short_place()))
    check_folder(wanted)
    wanted = wanted.absolute()
    wanted.mkdir(parents=True, exist_ok=True)
    wanted.chmod(0o700)  # it has keys and tokens
    return wanted


def check_folder(wanted: Path) -> None:
    """Refuse a folder that a sandbox cannot use; the sandbox creates and removes it."""
    wanted = wanted.absolute()
    if len(str(wanted)) > _LONGEST_FOLDER:
        raise SandboxError(
            f"folder {wanted}",
            f"has more than {_LONGEST_FOLDER} characters: its sockets' paths would be too long",
            "give a shorter path, or none",
        )
    if wanted.exists() and (not wanted.is_dir() or any(wanted.iterdir())):
        raise SandboxError(
            f"folder {wanted}", "exists and is not empty", "give another one, or none"
        )


def _short_place() -> str:
    usual = tempfile.gettempdir()
    return usual if len(usual) < _LONGEST_FOLDER // 2 else "/tmp"  # noqa: S108 - mkdtemp is safe


def _keep(logs: Path, wanted: Path) -> None:
    shutil.copytree(logs, wanted, dirs_exist_ok=True)


def _remove(folder: Path) -> None:
    unmount_below(folder)
    shutil.rmtree(folder)


def unmount_below(folder: Path) -> None:
    """Unmount everything below a folder, the innermost first; errors are ignored."""
    real = folder.resolve()
    lines = _MOUNTINFO.read_text().splitlines()
    points = [Path(line.split(" ")[_POINT]) for line in lines]
    for point in reversed(points):
        if point.is_relative_to(real):
            with contextlib.suppress(OSError):
                state_files.unmount(point)
