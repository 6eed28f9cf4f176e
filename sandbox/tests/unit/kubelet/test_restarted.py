"""A killed kubelet resumes: nothing runs twice, nothing is forgotten."""

from __future__ import annotations

import asyncio

from hami.agent.kubelet import checkpoint
from hami.node.layout import NodeLayout
from sandbox.tests.unit.devices.desk import FakePlugin
from sandbox.tests.unit.kubelet.pods import container, pod
from sandbox.tests.unit.kubelet.rig import Node
from tests.e2e.kubelet_api import pod_resources
from tests.unit.kube.following import until

SHARE = {"limits": {"nvidia.com/gpu": "1"}}


def starts(node: Node) -> int:
    return node.runtime.asked.count(("start", "main"))


async def test_running_containers_are_adopted(node: Node) -> None:
    async with node.running():
        node.put(pod())
        await until(lambda: node.phase() == "Running")
    before = node.status()
    written = len(node.api.sent("PATCH", "/pods/"))
    async with node.running():
        node.put(pod("q", container("other")))
        await until(lambda: node.phase("q") == "Running")
        assert starts(node) == 1
        assert node.status() == before
        assert all("/pods/q/" in each.path for each in node.api.sent("PATCH", "/pods/")[written:])
        node.runtime.end("main", 1)
        await until(lambda: starts(node) == 2)


async def test_what_ended_meanwhile_is_told(node: Node) -> None:
    async with node.running():
        node.put(pod(restartPolicy="Never"))
        await until(lambda: node.phase() == "Running")
    node.runtime.end("main", 3)
    async with node.running():
        await until(lambda: node.phase() == "Failed")
    assert node.state()["terminated"]["exitCode"] == 3
    async with node.running() as kubelet:
        assert node.phase() == "Failed"
        assert kubelet.pods.active() == frozenset()
    assert starts(node) == 1


async def test_a_container_that_was_made_but_not_started_is_made_anew(node: Node) -> None:
    node.runtime.refuses_start["main"] = "killed here"
    async with node.running():
        node.put(pod())
        await until(lambda: node.runtime.states)
    state = node.runtime.latest("main")
    node.runtime.states = {}
    node.runtime.refuses_start.clear()
    await node.runtime.create(state.spec)
    async with node.running():
        await until(lambda: node.phase() == "Running")
    assert node.runtime.asked[-3:] == [("remove", "main"), ("create", "main"), ("start", "main")]
    assert node.runtime.latest("main").spec.attempt == state.spec.attempt


async def test_the_containers_of_pods_that_went_meanwhile_are_ended(node: Node) -> None:
    async with node.running():
        node.put(pod(volumes=[{"name": "v", "emptyDir": {}}]))
        node.put(pod("q", container("other")))
        await until(lambda: node.runtime.running() == ("main", "other"))
    folders = [node.folder / "k" / "pods" / "uid-p", node.folder / "k" / "logs"]
    assert folders[0].exists()
    node.api.remove("pods", "p")
    async with node.running():
        await until(lambda: node.runtime.running() == ("other",))
        await until(lambda: not folders[0].exists())
        await until(lambda: [each.name for each in folders[1].iterdir()] == ["default_q_uid-q"])
        assert len(node.runtime.states) == 1


async def test_a_pod_that_was_ending_ends(node: Node) -> None:
    node.runtime.stubborn.add("main")
    async with node.running():
        node.put(pod())
        await until(lambda: node.phase() == "Running")
        node.delete("p", grace=600)
        await until(lambda: "main" in node.runtime.graces)
    node.runtime.end("main", 143)
    async with node.running():
        await until(node.deletions)
    assert node.phase() == "Failed"


async def test_what_a_pod_that_was_ending_holds_is_told_until_it_has_ended(node: Node) -> None:
    layout = NodeLayout(kubelet_dir=node.folder / "k")
    node.runtime.stubborn.add("main")
    async with node.running() as kubelet, node.plugin(kubelet, FakePlugin("a")):
        node.put(pod("p", container(resources=SHARE)))
        await until(lambda: node.phase() == "Running")
        node.delete("p", grace=600)
        await until(lambda: "main" in node.runtime.graces)

    async def told() -> list[tuple[str, frozenset[str]]]:
        rows = await asyncio.to_thread(
            pod_resources.list_pod_resources, layout.pod_resources_socket
        )
        return [(row.pod, frozenset(row.device_ids)) for row in rows]

    async with node.running():
        assert await told() == [("p", frozenset({"a"}))]
        node.runtime.end("main", 143)
        await until(node.deletions)
        assert await told() == []


async def test_device_ids_come_from_the_checkpoint(node: Node) -> None:
    layout = NodeLayout(kubelet_dir=node.folder / "k")
    plugin = FakePlugin("a", "b")
    async with node.running() as kubelet, node.plugin(kubelet, plugin):
        node.put(pod("p", container(resources=SHARE)))
        await until(lambda: node.phase() == "Running")
    held = checkpoint.read(layout.checkpoint).entries
    async with node.running() as kubelet:
        assert starts(node) == 1
        assert node.phase() == "Running"
        async with node.plugin(kubelet, plugin):
            node.put(pod("q", container("other", resources=SHARE)))
            await until(lambda: node.phase("q") == "Running")
            entries = checkpoint.read(layout.checkpoint).entries
            assert [each for each in entries if each.pod_uid == "uid-p"] == list(held)
            assert len({next(iter(each.device_ids)) for each in entries}) == 2
            node.runtime.end("main", 1)
            await until(lambda: starts(node) == 2)
            allocated = [call for call, _ in plugin.calls if call == "Allocate"]
            assert len(allocated) == 2, "a restart asks for no new ids"
