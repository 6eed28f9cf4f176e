"""Owners of tokens: the bare plugin's decisions on files alone."""

from __future__ import annotations

import base64
import dataclasses
import json
import pathlib
from typing import Any

import pytest

from tests.e2e.bare_plugin import binding
from tests.e2e.bare_plugin.binding import LateBinding, Node
from tests.e2e.bare_plugin.pods import Pods
from tests.e2e.kubelet_api import checkpoint
from tests.e2e.kubelet_api.checkpoint import CheckpointError
from tests.e2e.kubelet_api.device_plugin import Allocation, Mount, RefusedError

RESOURCE = "example.com/vgpu"


class FakeApi:
    """Replaces the client by a list of pods: these tests have no event loop and no sockets."""

    def __init__(self) -> None:
        self.pods: dict[str, dict[str, Any]] = {}
        self.asked: list[str | float] = []

    def get(self, path: str, **query: str | float) -> dict[str, Any]:
        assert path == "/api/v1/pods"
        self.asked.append(query["fieldSelector"])
        return {"items": list(self.pods.values())}

    def add(self, uid: str, limits: dict[str, int], init: dict[str, int] | None = None) -> None:
        def containers(of: dict[str, int]) -> list[dict[str, Any]]:
            return [
                {"name": name, "resources": {"limits": {RESOURCE: str(limit)}}}
                for name, limit in of.items()
            ]

        spec: dict[str, Any] = {"containers": [*containers(limits), {"name": "plain"}]}
        if init is not None:
            spec["initContainers"] = containers(init)
        metadata = {"uid": uid, "namespace": "team", "name": f"pod-{uid}"}
        self.pods[uid] = {"metadata": metadata, "spec": spec}


@dataclasses.dataclass
class Bench:
    """A node's folders, its API, and the checkpoint that a kubelet would have written."""

    root: pathlib.Path
    api: FakeApi = dataclasses.field(default_factory=FakeApi)
    entries: list[dict[str, Any]] = dataclasses.field(default_factory=list)

    def __post_init__(self) -> None:
        (self.root / "var/lib/kubelet/device-plugins").mkdir(parents=True)
        self.binding = self.new_binding()
        self.write()

    def new_binding(self) -> LateBinding:
        return LateBinding(Node(self.root), RESOURCE, Pods(self.api, "node-a"))

    def allocate(self, uid: str, container: str, *ids: str, resource: str = RESOURCE) -> str:
        """Do as kubelet does when it admits a container; return its token."""
        return self.enter(uid, container, self.binding.allocate(), *ids, resource=resource)

    def enter(
        self, uid: str, container: str, answer: Allocation, *ids: str, resource: str = RESOURCE
    ) -> str:
        entry = {
            "PodUID": uid,
            "ContainerName": container,
            "ResourceName": resource,
            "DeviceIDs": {"-1": list(ids)},
            "AllocResp": base64.b64encode(answer.encode()).decode(),
        }
        self.entries.append(entry)
        self.write()
        return answer.cdi_devices[0].partition("=")[2]

    def write(self) -> None:
        data = {"PodDeviceEntries": self.entries, "RegisteredDevices": {}}
        path = self.root / checkpoint.PATH.relative_to("/")
        path.write_text(json.dumps({"Data": data, "Checksum": 0}))

    def folder(self, token: str) -> pathlib.Path:
        return self.root / "var/lib/bare-plugin/tokens" / token

    def policy(self, token: str) -> Any:
        return json.loads((self.folder(token) / "policy.json").read_text())

    def spec(self, token: str) -> pathlib.Path:
        return self.root / f"etc/cdi/bare.hami.io-vgpu-{token}.json"

    def written(self) -> set[str]:
        folders = (self.root / "etc/cdi", self.root / "var/lib/bare-plugin/tokens")
        return {
            str(path.relative_to(self.root))
            for folder in folders
            for path in folder.rglob("*")
            if path.is_file()
        }


@pytest.fixture
def bench(tmp_path: pathlib.Path) -> Bench:
    return Bench(tmp_path)


def ids(*names: str) -> frozenset[str]:
    return frozenset(names)


def test_each_allocation_is_a_fresh_token_that_names_no_gpu(bench: Bench) -> None:
    first, second = bench.binding.allocate(), bench.binding.allocate()
    assert first.cdi_devices != second.cdi_devices
    kind, _, token = first.cdi_devices[0].partition("=")
    assert kind == "bare.hami.io/vgpu"
    assert first == Allocation(
        envs={"NVIDIA_VISIBLE_DEVICES": "void"},
        mounts=(Mount("/run/bare/policy", f"/var/lib/bare-plugin/tokens/{token}", read_only=True),),
        cdi_devices=(f"bare.hami.io/vgpu={token}",),
    )
    assert bench.folder(token).is_dir()
    assert bench.written() == set()


def test_a_start_gives_the_token_its_pod_and_only_that_token(bench: Bench) -> None:
    tokens = {}
    for name in ("a", "b", "c"):
        bench.api.add(name, {"main": 1})
        tokens[name] = bench.allocate(name, "main", f"vgpu-{name}")
    bench.binding.prepare(ids("vgpu-b"))
    token = tokens["b"]
    assert bench.policy(token) == {
        "uid": "b",
        "pod": "team/pod-b",
        "container": "main",
        "devices": ["vgpu-b"],
    }
    env = [
        "NVIDIA_VISIBLE_DEVICES=GPU-vgpu-b",
        "BARE_POD_UID=b",
        "BARE_CONTAINER=main",
    ]
    assert json.loads(bench.spec(token).read_text()) == {
        "cdiVersion": "0.5.0",
        "kind": "bare.hami.io/vgpu",
        "devices": [{"name": token, "containerEdits": {"env": env}}],
    }
    assert bench.written() == {
        f"etc/cdi/bare.hami.io-vgpu-{token}.json",
        f"var/lib/bare-plugin/tokens/{token}/policy.json",
    }


def test_an_init_container_and_the_main_one_that_inherits_its_device_are_both_prepared(
    bench: Bench,
) -> None:
    bench.api.add("a", {"main": 1, "side": 1}, init={"load": 1})
    tokens = {
        "load": bench.allocate("a", "load", "vgpu-1"),
        "main": bench.allocate("a", "main", "vgpu-1"),
    }
    beside = bench.allocate("a", "side", "vgpu-2")
    bench.binding.prepare(ids("vgpu-1"))
    assert {name: bench.policy(token)["container"] for name, token in tokens.items()} == {
        "load": "load",
        "main": "main",
    }
    assert "BARE_CONTAINER=load" in bench.spec(tokens["load"]).read_text()
    assert "BARE_CONTAINER=main" in bench.spec(tokens["main"]).read_text()
    assert not bench.spec(beside).exists()


def test_all_devices_of_a_container_are_named(bench: Bench) -> None:
    bench.api.add("a", {"main": 2})
    token = bench.allocate("a", "main", "vgpu-2", "vgpu-1")
    bench.binding.prepare(ids("vgpu-1", "vgpu-2"))
    assert bench.policy(token)["devices"] == ["vgpu-1", "vgpu-2"]
    assert "NVIDIA_VISIBLE_DEVICES=GPU-vgpu-1,GPU-vgpu-2" in bench.spec(token).read_text()


@pytest.mark.parametrize("asked", [ids("vgpu-9"), ids("vgpu-1"), ids("vgpu-1", "vgpu-2", "vgpu-3")])
def test_devices_that_no_container_holds_exactly_are_refused(
    bench: Bench, asked: frozenset[str]
) -> None:
    bench.api.add("a", {"main": 2})
    bench.allocate("a", "main", "vgpu-1", "vgpu-2")
    with pytest.raises(RefusedError, match=rf"{','.join(sorted(asked))} with a token .* to no pod"):
        bench.binding.prepare(asked)
    assert bench.written() == set()


def test_a_token_of_another_plugin_or_resource_is_not_ours(bench: Bench) -> None:
    bench.api.add("a", {"main": 1})
    bench.allocate("a", "main", "vgpu-1", resource="example.com/other")
    for name in ("nvidia.com/gpu=" + "0" * 32, "bare.hami.io/vgpu=../../../../etc/passwd"):
        bench.enter("a", "main", Allocation(cdi_devices=(name,)), "vgpu-1")
    with pytest.raises(RefusedError, match="to no pod"):
        bench.binding.prepare(ids("vgpu-1"))


def test_devices_of_two_pods_are_refused(bench: Bench) -> None:
    for name in ("a", "b"):
        bench.api.add(name, {"main": 1})
        bench.allocate(name, "main", "vgpu-1")
    with pytest.raises(RefusedError, match="to a and b; exactly one"):
        bench.binding.prepare(ids("vgpu-1"))
    assert bench.written() == set()


def test_a_pod_that_the_api_does_not_have_is_refused(bench: Bench) -> None:
    bench.allocate("ghost", "main", "vgpu-1")
    with pytest.raises(RefusedError, match="no pod with UID ghost on this node"):
        bench.binding.prepare(ids("vgpu-1"))
    assert bench.written() == set()


@pytest.mark.parametrize(("container", "limit"), [("main", "2"), ("plain", "0"), ("other", "0")])
def test_a_container_that_asked_for_something_else_is_refused(
    bench: Bench, container: str, limit: str
) -> None:
    bench.api.add("a", {"main": 2})
    bench.allocate("a", container, "vgpu-1")
    with pytest.raises(
        RefusedError, match=rf"'{container}' of pod team/pod-a 1 of .* limit says {limit}"
    ):
        bench.binding.prepare(ids("vgpu-1"))
    assert bench.written() == set()


def test_a_second_start_writes_nothing_new(bench: Bench) -> None:
    bench.api.add("a", {"main": 1})
    token = bench.allocate("a", "main", "vgpu-1")
    bench.binding.prepare(ids("vgpu-1"))
    before = bench.spec(token).stat()
    bench.binding.prepare(ids("vgpu-1"))
    after = bench.spec(token).stat()
    assert (after.st_ino, after.st_mtime_ns) == (before.st_ino, before.st_mtime_ns)


def test_a_new_plugin_prepares_what_the_old_one_allocated(bench: Bench) -> None:
    bench.api.add("a", {"main": 1})
    token = bench.allocate("a", "main", "vgpu-1")
    bench.binding.close()
    bench.new_binding().prepare(ids("vgpu-1"))
    assert bench.policy(token)["uid"] == "a"


def test_pods_that_are_known_are_not_asked_for_again(bench: Bench) -> None:
    for number in range(100):
        bench.api.add(f"uid-{number}", {"main": 1})
        bench.allocate(f"uid-{number}", "main", f"vgpu-{number}")
    for number in range(100):
        bench.binding.prepare(ids(f"vgpu-{number}"))
    assert bench.api.asked == ["spec.nodeName=node-a"]
    bench.api.add("late", {"main": 1})
    bench.allocate("late", "main", "vgpu-late")
    bench.binding.prepare(ids("vgpu-late"))
    assert len(bench.api.asked) == 2


class TestSweep:
    def test_a_living_pod_keeps_its_token(self, bench: Bench) -> None:
        bench.api.add("a", {"main": 1})
        token = bench.allocate("a", "main", "vgpu-1")
        bench.binding.prepare(ids("vgpu-1"))
        bench.binding.sweep(0)
        assert bench.spec(token).exists()
        assert bench.policy(token)["uid"] == "a"

    @pytest.mark.parametrize("gone_from", ["checkpoint", "api"])
    def test_a_pod_that_is_gone_leaves_nothing(self, bench: Bench, gone_from: str) -> None:
        bench.api.add("a", {"main": 1})
        token = bench.allocate("a", "main", "vgpu-1")
        bench.binding.prepare(ids("vgpu-1"))
        if gone_from == "checkpoint":
            bench.entries.clear()
            bench.write()
        else:
            bench.api.pods.clear()
        bench.binding.sweep(0)
        assert not bench.folder(token).exists()
        assert not bench.spec(token).exists()

    def test_a_spec_without_a_folder_goes_as_well(self, bench: Bench) -> None:
        spec = bench.spec("0" * 32)
        spec.write_text("{}")
        foreign = spec.with_name("bare.hami.io-vgpu-mine.json")
        foreign.write_text("{}")
        bench.binding.sweep(0)
        assert not spec.exists()
        assert foreign.exists()

    def test_a_young_token_waits_for_the_checkpoint(self, bench: Bench) -> None:
        token = bench.binding.allocate().cdi_devices[0].partition("=")[2]
        bench.binding.sweep(60)
        assert bench.folder(token).exists()
        bench.binding.sweep(0)
        assert not bench.folder(token).exists()

    def test_without_a_readable_checkpoint_nothing_is_swept(self, bench: Bench) -> None:
        token = bench.binding.allocate().cdi_devices[0].partition("=")[2]
        (bench.root / checkpoint.PATH.relative_to("/")).write_text("{")
        with pytest.raises(CheckpointError):
            bench.binding.sweep(0)
        assert bench.folder(token).exists()


def test_the_plugin_leaves_only_what_containers_need(bench: Bench) -> None:
    bench.api.add("a", {"main": 1})
    token = bench.allocate("a", "main", "vgpu-1")
    bench.binding.prepare(ids("vgpu-1"))
    bench.binding.close()
    left = {str(path.relative_to(bench.root)) for path in bench.root.rglob("*")}
    assert left == {
        "etc",
        "etc/cdi",
        f"etc/cdi/bare.hami.io-vgpu-{token}.json",
        "var",
        "var/lib",
        "var/lib/bare-plugin",
        "var/lib/bare-plugin/tokens",
        f"var/lib/bare-plugin/tokens/{token}",
        f"var/lib/bare-plugin/tokens/{token}/{binding.POLICY_FILE}",
        "var/lib/kubelet",
        "var/lib/kubelet/device-plugins",
        "var/lib/kubelet/device-plugins/kubelet_internal_checkpoint",
    }
