"""Containers that cannot be made: the reason in kubelet's words, and retries."""

from __future__ import annotations

from hami.agent.errors import AgentError
from hami.agent.kubelet.kubelet_api import AllocateResponse
from hami_sandbox.kubelet.attempts import Waits
from sandbox.tests.unit.devices.desk import FakePlugin
from sandbox.tests.unit.kubelet.pods import container, pod
from sandbox.tests.unit.kubelet.rig import Node
from tests.unit.kube.following import until

GPU = "nvidia.com/gpu"
SHARE = {"limits": {GPU: "1"}}


async def test_devices_reach_the_container(node: Node) -> None:
    plugin = FakePlugin("a", "b")
    plugin.answering = AllocateResponse(
        envs={"SHARE": "1", "MODE": "plugin"}, cdi_devices=("hami.io/vgpu=t",)
    )
    async with node.running() as kubelet, node.plugin(kubelet, plugin):
        env = [{"name": "MODE", "value": "pod"}]
        node.put(pod("p", container(resources=SHARE, env=env)))
        await until(lambda: node.phase() == "Running")
        assert [call for call, _ in plugin.calls] == ["Allocate", "PreStart"]
    spec = node.runtime.latest("main").spec
    assert spec.cdi_devices == ("hami.io/vgpu=t",)
    assert (spec.env["SHARE"], spec.env["MODE"]) == ("1", "pod")


async def test_a_refused_prestart_is_tried_again(node: Node) -> None:
    plugin = FakePlugin("a")

    def refuse() -> None:
        raise AgentError("pod p", "has no grant")

    plugin.starting = refuse
    async with node.running() as kubelet, node.plugin(kubelet, plugin):
        node.put(pod("p", container(resources=SHARE)))
        await until(lambda: node.waits_for() == "CreateContainerConfigError")
        assert "hami: pod p: has no grant" in node.state()["waiting"]["message"]
        assert node.phase() == "Pending"
        tries = len(plugin.started)
        await until(lambda: len(plugin.started) > tries)
        await until(lambda: any("hami: pod p: has no grant" in told for _, told in node.events()))
        plugin.starting = lambda: None
        await until(lambda: node.phase() == "Running")


async def test_a_pod_whose_devices_are_not_there_fails(node: Node) -> None:
    plugin = FakePlugin("a")
    async with node.running() as kubelet, node.plugin(kubelet, plugin):
        node.put(pod("p", container(resources={"limits": {GPU: "2"}})))
        await until(lambda: node.phase() == "Failed")
        assert node.status()["reason"] == "UnexpectedAdmissionError"
        assert node.status()["message"].startswith("Pod was rejected: Allocate failed due to ")
        assert node.runtime.asked == []
        # It holds nothing: another one is admitted.
        node.put(pod("q", container(resources=SHARE)))
        await until(lambda: node.phase("q") == "Running")


async def test_the_devices_of_a_pod_that_ended_are_free(node: Node) -> None:
    plugin = FakePlugin("a")
    async with node.running() as kubelet, node.plugin(kubelet, plugin):
        node.put(pod("p", container(resources=SHARE), restartPolicy="Never"))
        await until(lambda: node.phase() == "Running")
        node.runtime.end("main")
        await until(lambda: node.phase() == "Succeeded")
        node.put(pod("q", container(resources=SHARE)))
        await until(lambda: node.phase("q") == "Running")


async def test_a_runtime_that_cannot_make_it(node: Node) -> None:
    told = "failed to inject CDI devices: unresolvable CDI devices hami.io/vgpu=t"
    node.runtime.refuses_create["main"] = told
    async with node.running():
        node.put(pod())
        await until(lambda: node.waits_for() == "CreateContainerError")
        assert node.state()["waiting"]["message"] == told
        await until(lambda: ("Failed", f"Error: {told}") in node.events())
        del node.runtime.refuses_create["main"]
        await until(lambda: node.phase() == "Running")
        assert node.status()["containerStatuses"][0]["restartCount"] == 0


async def test_a_program_that_cannot_be_started(node: Node) -> None:
    node.runtime.refuses_start["main"] = 'exec: "nope": executable file not found in $PATH'
    node.waits = Waits(first=600)
    async with node.running():
        node.put(pod())
        await until(lambda: node.waits_for() == "RunContainerError")
        assert node.state()["waiting"]["message"] == node.runtime.refuses_start["main"]
        last = node.status()["containerStatuses"][0]["lastState"]["terminated"]
        assert (last["exitCode"], last["reason"]) == (128, "StartError")
    node.waits = Waits(first=0.05)
    node.runtime.refuses_start.clear()
    async with node.running():
        await until(lambda: node.phase() == "Running" and "running" in node.state())


async def test_an_image_that_nobody_knows(node: Node) -> None:
    node.waits = Waits(first=600)
    unknown: dict[str, object] = {"name": "main", "image": "example.com/own:1"}
    async with node.running():
        node.put(pod("p", unknown))
        await until(lambda: node.waits_for() == "ImagePullBackOff")
        told = node.state()["waiting"]["message"]
        assert 'Back-off pulling image "example.com/own:1": ErrImagePull: ' in told
        assert "give the container a command" in told
        node.put(pod("q", {**unknown, "command": ["work"]}))
        await until(lambda: node.phase("q") == "Running")


async def test_a_secret_that_comes_later(node: Node) -> None:
    source = {"secretKeyRef": {"name": "keys", "key": "k"}}
    volume = {"name": "v", "secret": {"secretName": "files"}}
    async with node.running():
        node.put(pod("p", container(env=[{"name": "KEY", "valueFrom": source}])))
        node.put(pod("q", container("other"), volumes=[volume]))
        await until(lambda: node.waits_for() == "CreateContainerConfigError")
        assert node.state()["waiting"]["message"] == 'secret "keys" not found'
        told = 'MountVolume.SetUp failed for volume "v" : secret "files" not found'
        await until(lambda: ("FailedMount", told) in node.events())
        assert node.waits_for("other", "q") == "ContainerCreating"
        for name in ("keys", "files"):
            node.api.put({"kind": "Secret", "metadata": {"name": name}, "data": {"k": "dg=="}})
        await until(lambda: node.phase() == node.phase("q") == "Running")
    assert node.runtime.latest("main").spec.env["KEY"] == "v"


async def test_a_pod_that_does_not_fit_is_refused(node: Node) -> None:
    async with node.running():
        node.put(pod("p", container(resources={"requests": {"cpu": "65"}})))
        await until(lambda: node.phase() == "Failed")
        assert node.status()["reason"] == "OutOfcpu"
        await until(lambda: "OutOfcpu" in [reason for reason, _ in node.events()])


async def test_a_pod_that_nobody_can_read_harms_no_other(node: Node) -> None:
    async with node.running():
        node.put(pod("p", container(resources={"limits": {GPU: "many"}})))
        node.put(pod("q", container("other", volumeMounts=[{"mountPath": "/x"}])))
        node.put(pod("r"))
        await until(lambda: node.phase() == "Failed")
        assert node.status()["reason"] == "UnexpectedAdmissionError"
        await until(lambda: node.phase("r") == "Running")
        node.put(pod("q", container("other")))
        await until(lambda: node.phase("q") == "Running")
