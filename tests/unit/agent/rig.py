"""A whole agent in this process: scripted API, stand-in driver, checkpoint.

    async with ScriptedApi() as api:
        node = rig.Node(folder, api)
        async with node.running() as agent:
            pod = node.pod("p", main=[(CARD, 4000, 30)])
            answer = await node.allocate(agent, pod, "main", "id-0")
            await node.start(agent, "id-0")

Leaving `running` without `node.stop` is what SIGKILL leaves: the disk, and nothing else.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import fcntl
import json
import os
import struct
import threading
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from hami.agent import allocator, drain, main, pods, reconciler
from hami.agent.cards import node_cards
from hami.agent.cards.node_config import NodeConfigFile
from hami.agent.kubelet import registration
from hami.agent.kubelet.kubelet_api import AllocateResponse
from hami.agent.main import Agent
from hami.agent.settings import Settings
from hami.kube.client import Client
from hami.node import files, layout
from hami.node.ledger_record import LedgerRecord
from hami.node.nvml import GpuProcess, NvmlError
from hami.node.nvml_cards import Card, Problem
from hami.serving.grant_keys import Keyring
from hami.serving.grant_signature import SigningKey
from hami.serving.tracing import Tracer
from hami.vendors import device_config
from hami.wire import annotation_keys, codec, file_layout, node_marks, policy_file, signature
from hami.wire.objects import Pod
from tests.e2e.kubelet_api import checksum, device_plugin
from tests.scripted_api.server import ScriptedApi
from tests.unit.agent import node_cards as cards
from tests.unit.agent import preparing
from tests.unit.agent.records import Part, devices
from tests.unit.kube.following import until

Object = dict[str, Any]

NODE = "gpu-1"
GPU = "nvidia.com/gpu"
CARD, OTHER = cards.uuid(0), cards.uuid(1)
#: MiB of a card.
WHOLE = 40 * 1024
KEYS = signature.GrantKeys(b"k" * 32)
SIGNING = SigningKey(b"s" * 32)
RING = Keyring(KEYS, public=(SIGNING.public,))
BUILT_IN = device_config.load_or_built_in("")
_LOCK_TIME = "2026-01-01T00:00:00Z"


class Keys:
    """The keys of a node: it verifies both forms."""

    def __init__(self, ring: Keyring = RING) -> None:
        self.ring = ring

    def keys(self) -> Keyring:
        return self.ring


BOTH = Keys()


class Driver:
    """In the place of NVML: lists what a test puts in, and opens what it lists."""

    def __init__(self, folder: Path, *listed: Card) -> None:
        self._folder = folder
        self._files: list[int] = []
        #: A thread may ask it after the agent has ended, and must leave no file open.
        self._lock = threading.Lock()
        self._connected = False
        self._only: Sequence[Card] | None = None
        #: Whether it opens every card, as no NVML that we know does.
        self.opens_all = False
        self.listed = list(listed)
        self.problems: tuple[Problem, ...] = ()
        #: Why it cannot be opened.
        self.missing = ""
        #: NVML's code of that error.
        self.code = 0
        self.opened = 0
        #: On every card.
        self.on_cards: tuple[GpuProcess, ...] = ()

    def open(self, _root: str, only: Sequence[Card] | None = None) -> Driver:
        self.opened += 1
        self._only = only
        if self.missing:
            raise NvmlError("the driver", self.missing, "install it", code=self.code)
        self._connected = True
        return self

    def cards(self) -> tuple[tuple[Card, ...], tuple[Problem, ...]]:
        buses = None if self._only is None else {card.bus_id for card in self._only}
        found = [card for card in self.listed if buses is None or card.bus_id in buses]
        with self._lock:
            for card in self.listed if self.opens_all else found:
                if self._connected:
                    file = self.device_file(card)
                    self._files.append(os.open(file, os.O_RDONLY | os.O_CREAT))
        return tuple(found), self.problems

    def device_file(self, card: Card) -> Path:
        return self._folder / f"nvidia{card.minor}"

    def links(self, _cards: Sequence[Card]) -> tuple[tuple[()], tuple[()]]:
        return (), ()

    def driver_version(self) -> str:
        return "580.1"

    def processes(self, _uuid: str) -> tuple[GpuProcess, ...]:
        return self.on_cards

    def close(self) -> None:
        with self._lock:
            self._connected = False
            while self._files:
                os.close(self._files.pop())


class CheckpointFile:
    """kubelet's checkpoint, as kubelet writes it."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._entries: dict[tuple[str, str], Object] = {}
        path.parent.mkdir(parents=True, exist_ok=True)
        self.write()

    def add(self, uid: str, container: str, ids: Sequence[str], answer: AllocateResponse) -> None:
        self._entries[uid, container] = {
            "PodUID": uid,
            "ContainerName": container,
            "ResourceName": GPU,
            "DeviceIDs": {"-1": list(ids)},
            "AllocResp": base64.b64encode(answer.encode()).decode(),
        }
        self.write()

    def drop(self, uid: str) -> None:
        self._entries = {key: entry for key, entry in self._entries.items() if key[0] != uid}
        self.write()

    def write(self, *, off: int = 0) -> None:
        """Write it; `off`: by so much the checksum is wrong."""
        data = {"PodDeviceEntries": list(self._entries.values()), "RegisteredDevices": {GPU: []}}
        whole: Object = {"Data": data}
        whole["Checksum"] = checksum.of(whole) + off
        files.write_atomic(self._path, json.dumps(whole).encode())


class Node:
    """A node with two cards, its kubelet, and what the API server knows of it."""

    def __init__(self, root: Path, api: ScriptedApi, *, kubelet: str = "v1.36.3") -> None:
        self.root = root
        self.api = api
        self.layout = preparing.layout(root)
        self.layout.cdi_dir.mkdir(parents=True, exist_ok=True)
        (root / "dev").mkdir(exist_ok=True)
        self.driver = Driver(root / "dev", cards.card(0), cards.card(1))
        #: In the place of /proc: this process, and those that a test adds.
        self.proc = root / "proc"
        self.proc.mkdir(exist_ok=True)
        (self.proc / str(os.getpid())).symlink_to(f"/proc/{os.getpid()}")
        self.checkpoint = CheckpointFile(self.layout.checkpoint)
        #: Whether the test runs a kubelet; else kubelet is taken to have our devices.
        self.kubelet = False
        self._stops: dict[int, tuple[asyncio.Event, asyncio.Task[None]]] = {}
        api.put(
            {
                "kind": "Node",
                "metadata": {"name": NODE, "annotations": {}},
                "status": {"nodeInfo": {"kubeletVersion": kubelet}},
            }
        )

    # The agent.

    def settings(self, **changes: Any) -> Settings:
        values: dict[str, Any] = {
            "node_name": NODE,
            "kubelet_dir": str(self.layout.kubelet_dir),
            "cdi_dir": str(self.layout.cdi_dir),
            "nvidia_cdi_dirs": str(self.root / "nvidia"),
            "hook_path": str(self.layout.hook_path),
            "state_dir": str(self.layout.state_dir),
            "run_dir": str(self.layout.run_dir),
            "proc_dir": str(self.proc),
            "runtime_endpoint": str(self.root / "cri.sock"),
            "binding": "late",
            "metrics_bind_address": "",
            "disable_health_checks": "all",  # the tests are the ones who complain of cards
            "pod_wait": 5.0,
        }
        return Settings(**{**values, **changes})

    @contextlib.asynccontextmanager
    async def running(
        self,
        *,
        wait: bool = True,
        keys: Keys | None = BOTH,
        **changes: Any,
    ) -> AsyncIterator[Agent]:
        """Run an agent; without `wait` it may know nothing yet."""
        settings = self.settings(**changes)
        file = NodeConfigFile(settings, BUILT_IN.nvidia)
        with self._quickly():
            async with Client(self.api.access(), user_agent="hami-tests", timeout=30) as client:
                agent = Agent(
                    settings,
                    client,
                    config=BUILT_IN,
                    config_file=file,
                    keys=keys,
                    tracer=Tracer.disabled(),
                )
                stop = asyncio.Event()
                task = asyncio.create_task(main.serve(agent, stop))
                self._stops[id(agent)] = stop, task
                try:
                    # kubelet is served after the ledger has been read.
                    await until(lambda: task.done() or agent.library.digest)
                    if wait:
                        await until(lambda: task.done() or _knows_all(agent))
                    yield agent
                    assert not task.done() or stop.is_set(), task
                finally:
                    task.cancel()
                    await asyncio.gather(task, return_exceptions=True)
                    Driver.close(
                        self.driver
                    )  # also where a test has put a hanging one in its place

    async def failure(self, agent: Agent) -> BaseException | None:
        """Wait until an agent has ended by itself; returns why."""
        stop, task = self._stops[id(agent)]
        await until(task.done)
        stop.set()
        return task.exception()

    @contextlib.contextmanager
    def _quickly(self) -> Iterator[None]:
        """Take the driver's place, and wait for nothing longer than a moment."""
        with contextlib.ExitStack() as stack:
            for module, name, value in (
                (node_cards, "Nvml", self.driver),
                (node_cards, "_RETRY_AFTER", 0.01),
                (node_cards, "_REOPEN_AFTER", 0.01),
                (main, "StateFiles", preparing.PlainStates),
                (pods, "_LIST_EVERY_S", 0.02),
                (reconciler, "_RETRY_EVERY", 0.01),
                (drain, "_QUIET", 0.0),
                (drain, "_CHECK_EVERY", 0.01),
                *(((registration.Registration, "watched", True),) if not self.kubelet else ()),
            ):
                stack.enter_context(mock.patch.object(module, name, value))
            yield

    async def stop(self, agent: Agent) -> None:
        """Let it end in order, as after SIGTERM."""
        stop, task = self._stops[id(agent)]
        stop.set()
        async with asyncio.timeout(30):
            await task

    async def seen(self, agent: Agent) -> None:
        """Wait until the agent has seen all that the API server has."""
        async with asyncio.timeout(60):
            await agent.pods.informer.wait_version(self.api.store.version)
            await agent.node_status._informer.wait_version(self.api.store.version)

    # Pods.

    def pod(
        self,
        name: str,
        *,
        init: Sequence[Part] | None = None,
        main: Sequence[Part] | None = None,
        side: Sequence[Part] | None = None,
        bound_to: str = NODE,
        signed_for: str = NODE,
        **changes: Any,
    ) -> Object:
        """Have a pod bound by our scheduler; each container is given by its cards."""
        spec: Object = {"nodeName": bound_to, "containers": [], "initContainers": []}
        slots: list[Sequence[Part]] = []
        for kind, parts in (("init", init), ("side", side), ("main", main)):
            if parts is None:
                continue
            slots.append(parts)
            container: Object = {"name": kind, "resources": {"limits": {GPU: len(parts)}}}
            if kind == "side":
                container["restartPolicy"] = "Always"
            spec["containers" if kind == "main" else "initContainers"].append(container)
        spec["containers"] = spec["containers"] or [{"name": "none"}]
        uid = changes.pop("uid", f"uid-{name}")
        granted = devices(slots)
        annotations = {
            annotation_keys.ASSIGNED_NODE: bound_to,
            annotation_keys.SIGNED_DEVICES: granted,
            annotation_keys.GRANT_MAC: signature.sign(
                KEYS, uid=uid, node=signed_for, devices=granted
            ),
            **changes.pop("annotations", {}),
        }
        metadata = {
            "name": name,
            "namespace": changes.pop("namespace", "team"),
            "uid": uid,
            "annotations": {key: text for key, text in annotations.items() if text is not None},
        }
        status = {"phase": "Pending", **changes.pop("status", {})}
        for container in spec["containers"]:
            container.update(changes.pop("container", {}))
        assert not changes
        return self.api.put({"kind": "Pod", "metadata": metadata, "spec": spec, "status": status})

    def change(
        self, pod: Object, annotations: Mapping[str, str] | None = None, **status: Any
    ) -> None:
        """Change a pod as others do."""
        now = self.stored(pod)
        now["metadata"]["annotations"] |= annotations or {}
        now["status"] |= status
        self.api.put(now)

    def stored(self, pod: Object) -> Object:
        found = self.api.find("pods", pod["metadata"]["name"], pod["metadata"]["namespace"])
        assert found is not None
        return found

    def says(self, pod: Object) -> dict[str, str]:
        found: dict[str, str] = self.stored(pod)["metadata"]["annotations"]
        return found

    def remove(self, pod: Object) -> None:
        self.api.remove("pods", pod["metadata"]["name"], pod["metadata"]["namespace"])

    def resize(self, pod: Object, *slots: Sequence[Part], signed: bool = True) -> None:
        """Ask for another share, as the scheduler's command does."""
        wanted = devices(slots)
        mac = signature.sign(KEYS, uid=uid(pod), node=NODE, devices=signature.resize(wanted))
        asked = {annotation_keys.RESIZE: wanted}
        if signed:
            asked[annotation_keys.RESIZE_MAC] = mac
        self.change(pod, asked)

    def events(self, reason: str) -> list[str]:
        return [e["message"] for e in self.api.objects("events") if e["reason"] == reason]

    def events_of(self, pod: str) -> list[str]:
        """Return the warnings about a pod."""
        return [
            e["message"]
            for e in self.api.objects("events")
            if e["involvedObject"]["name"] == pod and e["type"] == "Warning"
        ]

    # The node.

    def node_says(self) -> dict[str, str]:
        found = self.api.find("nodes", NODE)
        assert found is not None
        return found["metadata"].get("annotations") or {}

    def lock(self, pod: Object | None) -> None:
        """Let a pod have the node's lock, as the scheduler does."""
        found = self.api.find("nodes", NODE)
        assert found is not None
        annotations = found["metadata"].setdefault("annotations", {})
        if pod is None:
            annotations.pop(annotation_keys.NODE_LOCK, None)
        else:
            meta = pod["metadata"]
            value = f"{_LOCK_TIME},{meta['namespace']},{meta['name']}"
            assert node_marks.decode_lock(value).name
            annotations[annotation_keys.NODE_LOCK] = value
        self.api.put(found)

    @property
    def locked(self) -> bool:
        return annotation_keys.NODE_LOCK in self.node_says()

    # kubelet.

    async def allocate(
        self, agent: Agent, pod: Object, container: str, *ids: str
    ) -> device_plugin.Allocation:
        """Ask as kubelet does at a pod's admission, and write the answer down."""
        (answer,) = await agent.plugin.allocate([ids])
        self.checkpoint.add(uid(pod), container, ids, answer)
        return device_plugin.Allocation.decode(answer.encode())

    async def start(self, agent: Agent, *ids: str) -> None:
        """Ask as kubelet does right before it has a container made."""
        async with asyncio.timeout(30):
            await agent.plugin.pre_start(frozenset(ids))

    async def run_pod(self, agent: Agent, pod: Object, container: str, *ids: str) -> str:
        """Start a pod's container; return its allocation id."""
        answer = await self.allocate(agent, pod, container, *ids)
        await self.start(agent, *ids)
        return allocation_id_of(answer)

    # What a container would find.

    def env(self, allocation_id: str) -> dict[str, str]:
        """Read the environment that an allocation id's CDI spec gives."""
        spec = json.loads(self.layout.spec(allocation_id).read_bytes())
        variables: list[str] = spec["devices"][0]["containerEdits"]["env"]
        return dict(variable.split("=", 1) for variable in variables)

    def policy(self, allocation_id: str) -> policy_file.Policy:
        return policy_file.decode(self.layout.policy(allocation_id).read_bytes())

    def limits(self, allocation_id: str) -> list[tuple[str, int, int]]:
        """Return card, MiB and percent of each card in an allocation id's policy."""
        return [
            (share.card, share.memory_mib, share.core_limit or 0)
            for share in self.policy(allocation_id).shares
        ]

    def prepared(self) -> set[str]:
        """Return the allocation ids that a runtime could resolve."""
        return {path.stem.rpartition("-")[2] for path in self.layout.cdi_dir.glob("*.json")}

    def ledger(self) -> dict[str, Object]:
        """Read the ledger from the disk, by pod UID."""
        found = {}
        for path in self.layout.ledger.glob("*.json"):
            with contextlib.suppress(FileNotFoundError):  # a thread of the agent was faster
                found[path.stem] = json.loads(path.read_bytes())
        return found


def note_admissions(agent: Agent, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return a list that gets the pod's UID whenever the ledger is asked to take it in.

    A pod in it has been admitted, or waits until the write before has ended.
    """
    asked: list[str] = []
    admit = agent.allocator.admit

    async def noted(uid: str, change: allocator.Change) -> LedgerRecord:
        asked.append(uid)
        return await admit(uid, change)

    monkeypatch.setattr(agent.allocator, "admit", noted)
    return asked


def uid(pod: Object) -> str:
    return str(pod["metadata"]["uid"])


def decoded(pod: Object) -> Pod:
    return codec.decode(codec.encode(pod), Pod, what="pod")


def allocation_id_of(answer: device_plugin.Allocation) -> str:
    return answer.annotations[layout.ALLOCATION_ANNOTATION]


def _knows_all(agent: Agent) -> bool:
    return agent.pods.synced and agent.mode.settled and agent.cards.known.is_set()


@contextlib.contextmanager
def living(path: Path) -> Iterator[None]:
    """Hold a slot of a state file, as a process under the limiter does."""
    handle = os.open(path, os.O_RDWR)
    try:
        flock = struct.pack("@hhqqi0q", fcntl.F_WRLCK, os.SEEK_SET, file_layout.LOCK_BASE + 3, 1, 0)
        fcntl.fcntl(handle, fcntl.F_OFD_SETLK, flock)
        yield
    finally:
        os.close(handle)
