"""Late or by the lock: what is proven, what changes on the way, and who is caught between."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from hami.agent.errors import RefusalError
from hami.agent.kubelet import runtime as kubelet_runtime
from hami.agent.kubelet.runtime import RuntimeStatus, RuntimeStatusError
from hami.wire import annotation_keys
from tests.builders import NVIDIA
from tests.scripted_api.server import ScriptedApi
from tests.unit.agent.rig import CARD, Node, allocation_id_of
from tests.unit.kube.following import until

MARK = NVIDIA.annotations.binding
REASON = "hami.io/node-nvidia-lock-reason"
PHASE = annotation_keys.BIND_PHASE
PART = (CARD, 4000, 30)


class Runtime:
    """What the container runtime says."""

    def __init__(self, node: Node) -> None:
        self.able = RuntimeStatus(
            name="containerd", version="2.1", cdi_dirs=(str(node.layout.cdi_dir),)
        )
        self.unable = RuntimeStatus(name="containerd", version="1.6")
        self.silent = RuntimeStatusError("the container runtime", "does not answer")
        self.answer: RuntimeStatus | RuntimeStatusError = self.able

    async def status(self, _endpoint: str) -> RuntimeStatus:
        if isinstance(self.answer, RuntimeStatusError):
            raise self.answer
        return self.answer


@pytest.fixture
def runtime(node: Node, monkeypatch: pytest.MonkeyPatch) -> Runtime:
    made = Runtime(node)
    monkeypatch.setattr(kubelet_runtime, "runtime_status", made.status)
    return made


async def test_a_node_that_can_binds_late_and_says_so_beside_its_cards(
    node: Node, runtime: Runtime
) -> None:
    async with node.running(binding="auto") as agent:
        await until(lambda: MARK in node.node_says())
        assert agent.mode.late
        assert CARD in node.node_says()[NVIDIA.annotations.register]
        assert REASON not in node.node_says()
        await node.stop(agent)
    assert MARK not in node.node_says()
    assert NVIDIA.annotations.register in node.node_says()


@pytest.mark.parametrize("runtime_is", ["unable", "silent"])
async def test_a_node_that_cannot_says_why(node: Node, runtime: Runtime, runtime_is: str) -> None:
    runtime.answer = getattr(runtime, runtime_is)
    async with node.running(binding="auto") as agent:
        await until(lambda: REASON in node.node_says())
        assert not agent.mode.late
        assert MARK not in node.node_says()


async def test_an_old_kubelet_binds_by_the_lock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with ScriptedApi() as api:
        node = Node(tmp_path, api, kubelet="v1.28.9")
        monkeypatch.setattr(kubelet_runtime, "runtime_status", Runtime(node).status)
        async with node.running(binding="auto"):
            await until(lambda: "v1.29" in node.node_says().get(REASON, ""))


async def test_kubelets_first_question_waits_for_the_first_look(
    node: Node, runtime: Runtime
) -> None:
    gate = asyncio.Event()
    node.api.fault(path="/nodes", gate=gate, times=None)
    async with node.running(wait=False, binding="auto") as agent:
        pod = node.pod("p", main=[PART])
        asking = asyncio.create_task(node.allocate(agent, pod, "main", "id-0"))
        await until(lambda: agent.pods.synced)
        assert not asking.done()
        gate.set()
        answer = await asking
        assert answer.cdi_devices == (f"hami.io/vgpu={allocation_id_of(answer)}",)


async def test_kubelets_question_does_not_wait_for_ever(
    node: Node, runtime: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hami.agent.binding_mode._FIRST_CHECK", 0.05)
    node.api.fault(times=None, status=503)
    async with node.running(wait=False, binding="auto") as agent:
        with pytest.raises(RefusalError, match="503"):
            await agent.plugin.allocate([("id-0",)])


async def test_from_late_to_lock_and_back_every_pod_gets_its_own(
    node: Node, runtime: Runtime
) -> None:
    async with node.running(binding="auto") as agent:
        late = node.pod("late", main=[(CARD, 1000, 10)])
        first = await node.allocate(agent, late, "main", "id-0")
        runtime.answer = runtime.unable
        await agent.mode.decide()
        await until(lambda: MARK not in node.node_says() and REASON in node.node_says())

        by_lock = node.pod("lock", main=[(CARD, 2000, 20)])
        node.lock(by_lock)
        second = await node.allocate(agent, by_lock, "main", "id-1")
        assert not second.cdi_devices
        # What was promised late is kept.
        await node.start(agent, "id-0")
        assert node.limits(allocation_id_of(first)) == [(CARD, 1000, 10)]
        await node.start(agent, "id-1")
        assert node.limits(allocation_id_of(second)) == [(CARD, 2000, 20)]
        await until(lambda: not node.locked)

        # Bound under the lock, and asked for when there is none any more.
        between = node.pod("between", main=[(CARD, 3000, 30)])
        node.lock(between)
        runtime.answer = runtime.able
        await agent.mode.decide()
        await node.seen(agent)
        third = await node.allocate(agent, between, "main", "id-2")
        assert third.cdi_devices
        await node.start(agent, "id-2")
        assert node.limits(allocation_id_of(third)) == [(CARD, 3000, 30)]
        await until(lambda: not node.locked)
        await until(lambda: MARK in node.node_says() and REASON not in node.node_says())


async def test_a_pod_that_was_bound_late_is_not_served_by_the_lock(
    node: Node, runtime: Runtime
) -> None:
    runtime.answer = runtime.unable
    async with node.running(binding="auto") as agent:
        pod = node.pod("late", main=[PART])
        with pytest.raises(RefusalError, match=annotation_keys.NODE_LOCK):
            await node.allocate(agent, pod, "main", "id-0")


async def test_a_runtime_that_is_being_restarted_changes_nothing(
    node: Node, runtime: Runtime
) -> None:
    async with node.running(binding="auto") as agent:
        runtime.answer = runtime.silent
        await agent.mode.decide()
        assert agent.mode.late
        runtime.answer = runtime.unable
        await agent.mode.decide()
        assert not agent.mode.late


async def test_a_damaged_checkpoint_ends_late_binding_until_it_is_good_again(
    node: Node, runtime: Runtime
) -> None:
    async with node.running(binding="auto") as agent:
        node.book.write(off=1)
        with pytest.raises(RefusalError, match="checksum"):
            await node.start(agent, "id-0")
        assert not agent.mode.late
        await until(lambda: "checksum" in node.node_says().get(REASON, ""))
        node.book.write()
        agent.mode.request()
        await until(lambda: MARK in node.node_says())


async def test_a_damaged_checkpoint_at_the_start_is_told_too(node: Node, runtime: Runtime) -> None:
    node.book.write(off=1)
    gate = asyncio.Event()
    node.api.fault(path="/nodes", gate=gate, times=None)
    async with node.running(wait=False, binding="auto") as agent:
        with pytest.raises(RefusalError, match="checksum"):
            await node.start(agent, "id-0")
        gate.set()
        await until(lambda: "checksum" in node.node_says().get(REASON, ""))


@pytest.mark.parametrize("how", ["missing", "one answer"])
async def test_what_concerns_one_container_leaves_the_mode_alone(
    node: Node, runtime: Runtime, how: str
) -> None:
    async with node.running(binding="auto") as agent:
        if how == "missing":
            node.layout.checkpoint.unlink()
        else:
            node.book._entries["u", "c"] = {
                "PodUID": "u",
                "ContainerName": "c",
                "ResourceName": "nvidia.com/gpu",
                "DeviceIDs": {"-1": ["id-0"]},
                "AllocResp": "/////w==",
            }
            node.book.write()
        with pytest.raises(RefusalError):
            await node.start(agent, "id-0")
        assert agent.mode.late


async def test_as_told_it_binds_late_whatever_speaks_against_it(
    node: Node, runtime: Runtime
) -> None:
    runtime.answer = runtime.unable
    async with node.running(binding="late") as agent:
        node.book.write(off=1)
        with pytest.raises(RefusalError, match="checksum"):
            await node.start(agent, "id-0")
        await agent.mode.decide()
        assert agent.mode.late
        await until(lambda: MARK in node.node_says())


async def test_a_changed_node_is_looked_at_again(node: Node, runtime: Runtime) -> None:
    async with node.running(binding="auto"):
        await until(lambda: MARK in node.node_says())
        runtime.answer = runtime.unable
        found = node.api.find("nodes", "gpu-1")
        assert found is not None
        found["status"]["nodeInfo"]["containerRuntimeVersion"] = "containerd://1.6.0"
        node.api.put(found)
        await until(lambda: "1.6" in node.node_says().get(REASON, ""))


async def test_as_told_it_is_late_before_anything_is_known(node: Node) -> None:
    node.api.fault(times=None, status=503)
    async with node.running(wait=False, binding="late") as agent:
        (answer,) = await agent.plugin.allocate([("id-0",)])
        assert answer.cdi_devices
