"""A whole demo on a scripted cluster: lines, exit code, logs, Ctrl-C."""

from __future__ import annotations

import asyncio
import io
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

import pytest
from rich.console import Console

from hami_sandbox.demo import example, main, session
from hami_sandbox.demo.session import Demo, Settings
from sandbox.tests.unit.demo.scripted import ScriptedCluster, ScriptedWorld
from sandbox.tests.unit.demo.worlds import grant, node, pod
from tests.unit.kube.following import until

_TOML = """\
title = "One pod"
text = "It runs."
promise = "it runs"
[[step]]
text = "a pod"
apply = ["a.yaml"]
[[step.expect]]
kind = "pods"
name = "a"
within = 5
"""
_POD = "apiVersion: v1\nkind: Pod\nmetadata: {name: a}\nspec: {containers: [{name: c}]}\n"


class Machine:
    """Stands in for Sandbox: remembers whether it was left."""

    def __init__(self, folder: Path) -> None:
        self.kubeconfig = folder / "kubeconfig"
        self.isolation = "containers have namespaces"
        self.left = False
        self.world = ScriptedWorld(ScriptedCluster())
        self.world.nodes.put(node("gpu-a", 10000))
        self.runs = True
        self.world.moment = self._moment

    def _moment(self) -> None:
        for each in self.world.pods:
            if self.runs and not each.node_name:
                self.world.pods.put(pod(each.name, grant("gpu-a-0", 1000)))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await asyncio.sleep(0)  # a place where a second signal could strike
        self.left = True


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    made = Machine(tmp_path)

    def sandbox(_: object, *, say: Callable[[str], None], **__: Any) -> Machine:
        say("starting the API server")
        return made

    monkeypatch.setattr(session, "Sandbox", sandbox)
    monkeypatch.setattr(session, "ClusterView", lambda _, clock: made.world)
    return made


def settings(tmp_path: Path, **more: Any) -> Settings:
    folder = tmp_path / "examples" / "01-one"
    folder.mkdir(parents=True)
    (folder / "example.toml").write_text(_TOML)
    (folder / "a.yaml").write_text(_POD)
    plan = main.plan_fleet(["gpu-a=1xT4"], 0)
    return Settings(plan=plan, examples=example.load(folder.parent), **more)


def demo(
    machine: Machine, asked: Settings, *, terminal: bool = False
) -> tuple[Demo, Callable[[], str]]:
    console = Console(
        file=io.StringIO(), width=120, height=40, force_terminal=terminal, _environ={}
    )
    file = console.file
    assert isinstance(file, io.StringIO)
    return Demo(asked, console, clock=lambda: machine.world.now), file.getvalue


async def test_without_a_terminal_it_tells_and_ends(tmp_path: Path, machine: Machine) -> None:
    made, told = demo(machine, settings(tmp_path))
    assert await made.run() == 0
    text = told()
    for line in (
        "starting the API server",
        "[1/1] 01-one: One pod",
        "    ✓ pod a Running",
        "node gpu-a: 1xT4, binding late",
        "containers have namespaces",
        "1 of 1 examples ended as their texts say",
    ):
        assert line in text
    assert "kubectl" not in text
    assert machine.left


async def test_one_example_that_goes_otherwise_makes_the_exit_code_1(
    tmp_path: Path, machine: Machine
) -> None:
    machine.runs = False
    made, told = demo(machine, settings(tmp_path))
    assert await made.run() == 1
    assert "1 of 1 examples did not end as their texts say" in told()
    assert machine.left


async def test_once_ends_on_a_terminal_too(tmp_path: Path, machine: Machine) -> None:
    made, told = demo(machine, settings(tmp_path, once=True), terminal=True)
    assert await made.run() == 0
    assert "[1/1] 01-one" in told()


async def test_on_a_terminal_it_stays_until_ctrl_c(tmp_path: Path, machine: Machine) -> None:
    made, told = demo(machine, settings(tmp_path, command="hami"), terminal=True)
    running = asyncio.create_task(made.run())
    await until(lambda: "The cluster stays up" in told())
    assert not running.done()
    text = told()
    assert f"export KUBECONFIG={machine.kubeconfig}" in text
    assert text.count("  kubectl ") == 3
    os.kill(os.getpid(), signal.SIGINT)
    os.kill(os.getpid(), signal.SIGINT)
    assert await running == 0
    assert machine.left
    assert "no process and no file is left behind" in told()


async def test_ctrl_c_before_the_end_is_told_by_the_exit_code(
    tmp_path: Path, machine: Machine
) -> None:
    machine.runs = False
    machine.world.pace = 0.01  # real time passes, and too little of the example's
    made, _ = demo(machine, settings(tmp_path), terminal=True)
    running = asyncio.create_task(made.run())
    await until(lambda: len(machine.world.pods) == 1)
    os.kill(os.getpid(), signal.SIGTERM)
    assert await running == session.INTERRUPTED
    assert machine.left
