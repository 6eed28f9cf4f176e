"""`hami agent` as a process on stand-in GPUs: started, told to stop, killed, started again."""

from __future__ import annotations

import contextlib
import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from hami.agent.containers import state_files
from hami.agent.kubelet.kubelet_api import AllocateResponse
from hami_sandbox import gpus
from tests import processes
from tests.builders import NVIDIA
from tests.processes import Process
from tests.scripted_api.server import ScriptedApi
from tests.unit.agent.kubelet_rig import Kubelet, short_folder
from tests.unit.agent.rig import KEYS, NODE, Node, allocation_id_of, uid
from tests.unit.kube import kubeconfigs
from tests.unit.node import stand_in

MARK = NVIDIA.annotations.binding


class Machine(Node):
    """A node whose agent is a process of its own."""

    def flags(self, **changes: str) -> list[str]:
        values = {
            "node-name": NODE,
            "kubelet-dir": self.layout.kubelet_dir,
            "cdi-dir": self.layout.cdi_dir,
            "nvidia-cdi-dirs": self.root / "nvidia",
            "hook-path": self.layout.hook_path,
            "state-dir": self.layout.state_dir,
            "run-dir": self.layout.run_dir,
            "grant-key-dir": self.root / "keys",
            "driver-root": self.root / "driver",
            "binding": "late",
            "metrics-bind-address": "",
            "kubeconfig": kubeconfigs.write(self.root / "config", cluster={"server": self.api.url}),
            **changes,
        }
        return [f"--{name}={value}" for name, value in values.items()]

    def process(self, **changes: str) -> contextlib.AbstractAsyncContextManager[Process]:
        # With PYTHONPATH a deliberate error is there, too (tests/mutants).
        path = os.environ.get("PYTHONPATH", "")
        env = {"FAKEGPU_DIR": str(self.root / "cards"), "PYTHONPATH": path}
        return processes.running("agent", *self.flags(**changes), env=env)


@pytest.fixture
async def machine() -> AsyncIterator[Machine]:
    with short_folder() as root:
        gpus.write_node(root / "cards", [("A10", 2)], name=NODE)
        stand_in.driver_root(root / "driver")
        keys = root / "keys"
        keys.mkdir()
        (keys / "current").write_bytes(KEYS.current)
        async with ScriptedApi() as api:
            node = Machine(root, api)
            try:
                yield node
            finally:
                _unmount(node.layout.states)


def _unmount(states: Path) -> None:
    for folder in states.glob("*"):
        if folder.is_mount():
            state_files.unmount(folder)


async def test_it_serves_until_it_is_told_to_stop_and_serves_again_after_it_was_killed(
    machine: Machine,
) -> None:
    card = gpus.read_node(machine.root / "cards")[0].uuid
    kubelet = Kubelet(machine.layout)
    await kubelet.start()
    socket = machine.layout.device_plugins / "nvidia-gpu.sock"
    try:
        async with machine.process() as agent:
            _, client = await kubelet.plugin()
            await processes.eventually(lambda: MARK in machine.node_says())
            pod = machine.pod("p", main=[(card, 4000, 30)])
            (answer,) = await client.allocate(["id-0"])
            stored = AllocateResponse.decode(answer.encode())
            machine.book.add(uid(pod), "main", ["id-0"], stored)
            await client.pre_start(["id-0"])
            allocation_id = allocation_id_of(answer)
            assert machine.limits(allocation_id) == [(card, 4000, 30)]
            agent.kill()
            await agent.ended()
        # Nobody took anything back: it was killed.
        assert MARK in machine.node_says()
        assert machine.prepared() == {allocation_id}
        machine.layout.spec(allocation_id).unlink()
        node = machine.api.fault(times=None, status=503)
        async with machine.process() as agent:
            _, client = await kubelet.plugin()
            await client.pre_start(["id-0"])
            assert machine.prepared() == {allocation_id}
            machine.api.faults.remove(node)
            await agent.logged("the driver answers")
            await processes.eventually(lambda: machine.ledger()[uid(pod)]["told"])
            agent.terminate()
            assert await agent.ended() == 0
        assert MARK not in machine.node_says()
        assert not socket.exists()
        assert machine.prepared() == {allocation_id}
    finally:
        await kubelet.stop()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"state-dir": "{root}/config"}, "check --state-dir"),
        ({"grant-key-dir": "{root}/none"}, "mount the Secret"),
        ({"disable-health-checks": "often"}, "often"),
        ({"device-config-file": "{root}/none"}, "none"),
    ],
)
async def test_what_only_the_administrator_can_cure_is_one_line(
    machine: Machine, change: dict[str, str], said: str
) -> None:
    values = {name: value.format(root=machine.root) for name, value in change.items()}
    async with machine.process(**values) as agent:
        assert await agent.ended() == 2
    assert said in agent.lines[-1]
    assert "Traceback" not in "\n".join(agent.lines)


async def test_without_kubelet_driver_and_api_server_it_waits(machine: Machine) -> None:
    url = "http://127.0.0.1:1"
    config = kubeconfigs.write(machine.root / "nowhere", cluster={"server": url})
    async with machine.process(**{"driver-root": str(machine.root), "kubeconfig": config}) as agent:
        await agent.logged("kubelet is not connected")
        await agent.logged("no card is offered")
        await agent.logged("list failed")
        assert agent.running
