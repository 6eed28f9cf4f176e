"""The Node object that the kubelet stand-in writes."""

from __future__ import annotations

from typing import Any

from hami_sandbox.runtime import cri
from sandbox.tests.unit.devices.desk import FakePlugin
from sandbox.tests.unit.kubelet.pods import NODE
from sandbox.tests.unit.kubelet.rig import Node
from tests.unit.kube.following import until

GPU = "nvidia.com/gpu"


def told(node: Node) -> dict[str, Any]:
    return node.api.find("nodes", NODE) or {}


def amounts(node: Node) -> tuple[str | None, str | None]:
    status = told(node).get("status", {})
    return tuple(status.get(kind, {}).get(GPU) for kind in ("capacity", "allocatable"))


async def test_a_node_comes_up(node: Node) -> None:
    async with node.running() as kubelet:
        await until(lambda: told(node).get("status"))
        await until(lambda: node.api.objects("leases"))
    made = told(node)
    assert made["metadata"]["labels"]["team"] == "a"
    assert made["metadata"]["labels"]["kubernetes.io/hostname"] == NODE
    status = made["status"]
    conditions = {each["type"]: each["status"] for each in status["conditions"]}
    assert conditions["Ready"] == "True"
    assert status["addresses"][0] == {"type": "InternalIP", "address": "127.0.0.1"}
    assert status["nodeInfo"]["kubeletVersion"] == "v1.36.3"
    assert status["nodeInfo"]["containerRuntimeVersion"].startswith(f"{cri.NAME}://")
    assert status["allocatable"]["cpu"] == "64"
    assert status["daemonEndpoints"]["kubeletEndpoint"]["Port"] == kubelet.log_server.port
    (lease,) = node.api.objects("leases")
    assert lease["metadata"]["namespace"] == "kube-node-lease"
    assert lease["metadata"]["ownerReferences"][0]["uid"] == made["metadata"]["uid"]
    assert lease["spec"]["holderIdentity"] == NODE


async def test_devices_appear_and_go_with_their_plugin(node: Node) -> None:
    plugin = FakePlugin("a", "b")
    async with node.running() as kubelet:
        async with node.plugin(kubelet, plugin):
            await until(lambda: amounts(node) == ("2", "2"))
        await until(lambda: amounts(node) == ("2", "0"))


async def test_what_others_say_of_the_node_stays(node: Node) -> None:
    before = {"status": {"capacity": {"example.com/dongle": "3"}}, "metadata": {"name": NODE}}
    (node.folder / "k" / "device-plugins").mkdir(parents=True)
    node.api.put({"kind": "Node", **before})
    async with node.running():
        await until(lambda: "cpu" in told(node)["status"]["capacity"])
    # No record of devices, so whatever the node offered before is void: as kubelet has it.
    assert told(node)["status"]["capacity"]["example.com/dongle"] == "0"
    (node.folder / "k" / "device-plugins" / "kubelet_internal_checkpoint").write_text("{}")
    node.api.store.patch("nodes", "", NODE, {"status": {"capacity": {"example.com/dongle": "3"}}})
    written = len(node.api.sent("PATCH", "/status"))
    async with node.running():
        await until(lambda: len(node.api.sent("PATCH", "/status")) > written)
    assert told(node)["status"]["capacity"]["example.com/dongle"] == "3"


async def test_a_node_that_somebody_deleted_comes_back(node: Node) -> None:
    plugin = FakePlugin("a")
    async with node.running() as kubelet:
        await until(lambda: told(node).get("status"))
        node.api.remove("nodes", NODE)
        async with node.plugin(kubelet, plugin):
            await until(lambda: amounts(node) == ("1", "1"))


async def test_a_server_that_is_away_is_waited_for(node: Node) -> None:
    node.api.fault(path="/nodes", status=503, times=2)
    node.api.fault(path="/leases", status=500, times=2)
    async with node.running():
        await until(lambda: told(node).get("status"))
        await until(lambda: node.api.objects("leases"))
