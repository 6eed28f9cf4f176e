"""The bare plugin on real sockets, with stand-ins of kubelet and API server."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import ctypes
import json
import os
import pathlib
import signal
import struct
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Any, Self

import grpc
import pytest

from tests.e2e.bare_plugin import server
from tests.e2e.bare_plugin.binding import LateBinding, Node
from tests.e2e.bare_plugin.pods import Pods
from tests.e2e.kubelet_api import checksum, device_plugin
from tests.e2e.kubelet_api.device_plugin import Allocation, PluginClient, Registration
from tests.kubeapi import access
from tests.kubeapi.client import Client, wait_for
from tests.scripted_api.server import ScriptedApi

RESOURCE = "example.com/vgpu"
PATIENCE = 30
REPOSITORY = pathlib.Path(__file__).parents[3]


class Api(ScriptedApi):
    """The API server of the node: its pods, and a kubeconfig for it."""

    def __init__(self, folder: pathlib.Path) -> None:
        super().__init__()
        self.kubeconfig = folder / "kubeconfig"

    async def __aenter__(self) -> Self:
        await super().__aenter__()
        access.write(access.Access(self.url), self.kubeconfig)
        return self

    def add(self, uid: str, containers: Sequence[str], init: Sequence[str] = ()) -> None:
        limits = {"limits": {RESOURCE: "1"}}
        spec = {
            "nodeName": "node-a",
            "containers": [{"name": name, "resources": limits} for name in containers],
            "initContainers": [{"name": name, "resources": limits} for name in init],
        }
        metadata = {"uid": uid, "namespace": "team", "name": f"pod-{uid}"}
        self.put({"kind": "Pod", "metadata": metadata, "spec": spec})


class Kubelet:
    """Does with a plugin what kubelet does: registration, Allocate, checkpoint, PreStart."""

    def __init__(self, root: pathlib.Path) -> None:
        self.folder = root / "var/lib/kubelet/device-plugins"
        self.folder.mkdir(parents=True)
        self.registrations: asyncio.Queue[Registration] = asyncio.Queue()
        self.known: Registration | None = None
        self.entries: list[dict[str, Any]] = []
        self._client: PluginClient | None = None
        self._server: Any = None
        self._write()

    async def start(self, *, tidy: bool = True) -> None:
        """Serve; a real kubelet is tidy: it removes every socket, those of plugins too."""
        for left in self.folder.glob("*.sock"):
            if tidy:
                left.unlink()
        self._server = grpc.aio.server()
        handler = device_plugin.registration_handler(self._registered)
        self._server.add_generic_rpc_handlers((handler,))
        self._server.add_insecure_port(f"unix:{self.folder / 'kubelet.sock'}")
        await self._server.start()

    async def stop(self) -> None:
        await self._hang_up()
        await self._server.stop(None)

    async def plugin(self) -> PluginClient:
        """Wait until a plugin has registered."""
        async with asyncio.timeout(PATIENCE):
            self.known = await self.registrations.get()
        assert self._client is not None
        return self._client

    async def admit(self, uid: str, container: str, *ids: str) -> str:
        """Allocate for a container and write it down; return its token."""
        assert self._client is not None
        (answer,) = await self._client.allocate(ids)
        self.entries.append(_entry(uid, container, ids, answer))
        self._write()
        return answer.cdi_devices[0].partition("=")[2]

    async def _registered(self, registration: Registration) -> None:
        await self._hang_up()
        self._client = PluginClient(self.folder / registration.endpoint)
        assert await self._client.pre_start_required() == registration.pre_start_required
        self.registrations.put_nowait(registration)

    async def _hang_up(self) -> None:
        if self._client is not None:
            await self._client.close()

    def _write(self) -> None:
        whole: dict[str, Any] = {
            "Data": {"PodDeviceEntries": self.entries, "RegisteredDevices": {}}
        }
        whole["Checksum"] = checksum.of(whole)
        draft = self.folder / "draft"
        draft.write_text(json.dumps(whole))
        draft.rename(self.folder / "kubelet_internal_checkpoint")


def _entry(uid: str, container: str, ids: Sequence[str], answer: Allocation) -> dict[str, Any]:
    return {
        "PodUID": uid,
        "ContainerName": container,
        "ResourceName": RESOURCE,
        "DeviceIDs": {"-1": list(ids)},
        "AllocResp": base64.b64encode(answer.encode()).decode(),
    }


class Watched:
    """What happens to the files of a folder, told by the kernel as CDI's cache is told."""

    CREATE, MODIFY, MOVED_TO = 0x100, 0x2, 0x80

    def __init__(self, folder: pathlib.Path) -> None:
        libc = ctypes.CDLL(None, use_errno=True)
        self._file = libc.inotify_init1(os.O_NONBLOCK)
        mask = self.CREATE | self.MODIFY | self.MOVED_TO
        assert libc.inotify_add_watch(self._file, os.fsencode(folder), mask) > 0

    def events(self) -> list[tuple[int, str]]:
        """Return what has happened so far, as (event, name)."""
        with contextlib.suppress(BlockingIOError):
            data = os.read(self._file, 1 << 16)
            found = []
            while data:
                _watch, mask, _cookie, length = struct.unpack_from("iIII", data)
                found.append((mask, os.fsdecode(data[16 : 16 + length].rstrip(b"\0"))))
                data = data[16 + length :]
            return found
        return []

    def close(self) -> None:
        os.close(self._file)


@pytest.fixture
def root() -> Iterator[pathlib.Path]:
    """Return a folder whose path leaves room for a socket's; pytest's own does not always."""
    with tempfile.TemporaryDirectory(prefix="bare-") as folder:
        yield pathlib.Path(folder)


@pytest.fixture
async def api(root: pathlib.Path) -> AsyncIterator[Api]:
    async with Api(root) as served:
        yield served


@contextlib.asynccontextmanager
async def plugged(root: pathlib.Path, api: Api) -> AsyncIterator[tuple[Kubelet, PluginClient]]:
    """Run kubelet's stand-in and the plugin, registered."""
    kubelet = Kubelet(root)
    await kubelet.start()
    stop = asyncio.Event()
    with Client.from_kubeconfig(api.kubeconfig) as client:
        binding = LateBinding(Node(root), RESOURCE, Pods(client, "node-a"))
        running = asyncio.create_task(server.run(binding, kubelet.folder, RESOURCE, 3, stop))
        try:
            yield kubelet, await kubelet.plugin()
        finally:
            stop.set()
            await running
            await kubelet.stop()
    assert not (kubelet.folder / "bare.sock").exists()


def spec_of(root: pathlib.Path, token: str) -> pathlib.Path:
    return root / f"etc/cdi/bare.hami.io-vgpu-{token}.json"


def policy_of(root: pathlib.Path, token: str) -> Any:
    return json.loads((root / f"var/lib/bare-plugin/tokens/{token}/policy.json").read_text())


async def test_it_registers_and_lists_its_devices(root: pathlib.Path, api: Api) -> None:
    async with plugged(root, api) as (kubelet, plugin):
        assert kubelet.known == Registration("bare.sock", RESOURCE, pre_start_required=True)
        async with asyncio.timeout(PATIENCE):
            devices = await anext(plugin.devices())
        assert [device.id for device in devices] == ["vgpu-000", "vgpu-001", "vgpu-002"]
        assert {device.health for device in devices} == {"Healthy"}


async def test_a_request_for_several_containers_gets_a_token_each(
    root: pathlib.Path, api: Api
) -> None:
    async with plugged(root, api) as (_kubelet, plugin):
        answers = await plugin.allocate(["vgpu-000"], ["vgpu-001"])
        assert len({answer.cdi_devices for answer in answers}) == 2
        for answer in answers:
            assert answer.envs == {"NVIDIA_VISIBLE_DEVICES": "void"}
            (mount,) = answer.mounts
            assert (mount.container_path, mount.read_only) == ("/run/bare/policy", True)
            assert list((root / mount.host_path.lstrip("/")).iterdir()) == []


async def test_every_container_of_many_pods_gets_its_own_pod(root: pathlib.Path, api: Api) -> None:
    expected = {}
    async with plugged(root, api) as (kubelet, plugin):
        for number in range(20):
            uid, device = f"uid-{number}", f"vgpu-{number}"
            inits = ["load"] if number % 4 == 0 else []
            api.add(uid, ["main"], inits)
            for container in [*inits, "main"]:
                token = await kubelet.admit(uid, container, device)
                expected[token] = (uid, f"team/pod-{uid}", container, [device])
        starts = [plugin.pre_start([f"vgpu-{number}"]) for number in range(20)]
        await asyncio.gather(*starts)
    for token, (uid, pod, container, devices) in expected.items():
        assert policy_of(root, token) == {
            "uid": uid,
            "pod": pod,
            "container": container,
            "devices": devices,
        }
        (device,) = json.loads(spec_of(root, token).read_text())["devices"]
        assert device["containerEdits"]["env"] == [
            f"NVIDIA_VISIBLE_DEVICES=GPU-{devices[0]}",
            f"BARE_POD_UID={uid}",
            f"BARE_CONTAINER={container}",
        ]


async def test_the_spec_is_renamed_in_whole_before_the_answer(root: pathlib.Path, api: Api) -> None:
    api.add("a", ["main"])
    async with plugged(root, api) as (kubelet, plugin):
        token = await kubelet.admit("a", "main", "vgpu-001")
        watched = Watched(root / "etc/cdi")
        await plugin.pre_start(["vgpu-001"])
        assert watched.events() == [(Watched.MOVED_TO, spec_of(root, token).name)]
        await plugin.pre_start(["vgpu-001"])  # a restart of the container
        assert watched.events() == []
        watched.close()


async def test_a_refused_start_says_why_to_kubelet(root: pathlib.Path, api: Api) -> None:
    async with plugged(root, api) as (kubelet, plugin):

        async def refusal(*ids: str) -> str:
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await plugin.pre_start(ids)
            assert caught.value.code() is grpc.StatusCode.FAILED_PRECONDITION
            return caught.value.details() or ""

        assert "gives example.com/vgpu vgpu-002 with a token of ours to no pod" in (
            await refusal("vgpu-002")
        )
        await kubelet.admit("ghost", "main", "vgpu-001")
        assert "no pod with UID ghost on this node" in await refusal("vgpu-001")
        api.fault(path="/pods", status=500, times=None)
        assert "vgpu-001: 500" in await refusal("vgpu-001")
        (kubelet.folder / "kubelet_internal_checkpoint").write_text("{")
        assert "vgpu-001: " in (told := await refusal("vgpu-001"))
        assert "the checkpoint is no JSON" in told
        assert list((root / "etc/cdi").glob("*.json")) == []


@pytest.mark.parametrize("tidy", [True, False])
async def test_a_new_kubelet_is_registered_with_and_knows_the_old_tokens(
    root: pathlib.Path, api: Api, *, tidy: bool
) -> None:
    api.add("a", ["main"])
    async with plugged(root, api) as (kubelet, _plugin):
        token = await kubelet.admit("a", "main", "vgpu-001")
        for _restart in range(3):
            await kubelet.stop()
            await kubelet.start(tidy=tidy)
            plugin = await kubelet.plugin()
            async with asyncio.timeout(PATIENCE):
                assert len(await anext(plugin.devices())) == 3
            await plugin.pre_start(["vgpu-001"])
        assert policy_of(root, token)["uid"] == "a"


async def test_a_lost_socket_is_made_again(root: pathlib.Path, api: Api) -> None:
    async with plugged(root, api) as (kubelet, _plugin):
        (kubelet.folder / "bare.sock").unlink()
        plugin = await kubelet.plugin()
        assert await plugin.pre_start_required()


async def test_a_pod_that_is_gone_is_swept_while_serving(
    root: pathlib.Path, api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "SWEEP_EVERY", 0.01)

    async with plugged(root, api) as (kubelet, plugin):
        api.add("a", ["main"])
        token = await kubelet.admit("a", "main", "vgpu-001")
        await plugin.pre_start(["vgpu-001"])
        assert spec_of(root, token).exists()
        api.remove("pods", "pod-a", "team")
        monkeypatch.setattr(server, "GRACE", 0)  # only now: it protects what is being admitted
        places = (spec_of(root, token).parent, root / "var/lib/bare-plugin/tokens")
        await asyncio.to_thread(
            wait_for,
            "no spec and no folder",
            lambda: not any(list(place.glob("[!.]*")) for place in places),
            PATIENCE,
        )


async def test_the_program_serves_until_it_is_told_to_stop(root: pathlib.Path, api: Api) -> None:
    kubelet = Kubelet(root)
    api.add("a", ["main"])
    flags = {
        "--node-root": root,
        "--node": "node-a",
        "--kubeconfig": api.kubeconfig,
        "--resource": RESOURCE,
        "--devices": 5,
        "--cdi-dir": "/run/cdi",
    }
    program = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "tests.e2e.bare_plugin",
        *(str(part) for flag in flags.items() for part in flag),
        cwd=REPOSITORY,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        await kubelet.start()  # after the plugin: it waits for kubelet
        plugin = await kubelet.plugin()
        async with asyncio.timeout(PATIENCE):
            assert len(await anext(plugin.devices())) == 5
        token = await kubelet.admit("a", "main", "vgpu-004")
        await plugin.pre_start(["vgpu-004"])
        program.send_signal(signal.SIGTERM)
        async with asyncio.timeout(PATIENCE):
            _, log = await program.communicate()
    finally:
        if program.returncode is None:
            program.kill()
            await program.wait()
        await kubelet.stop()
    assert program.returncode == 0, log.decode()
    assert b"prepared vgpu-004 for team/pod-a" in log
    assert b"Traceback" not in log
    assert not (kubelet.folder / "bare.sock").exists()
    assert [path.name for path in (root / "run/cdi").iterdir()] == [spec_of(root, token).name]
