"""A share of a card in a container: agent, libvgpu, stand-in driver."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hami.agent.containers.state_files import StateFiles
from hami.monitor.processes import Processes
from hami.node import layout
from hami.wire import state_file
from hami_sandbox.runtime.runtime import Runtime
from hami_sandbox.runtime.spec import Isolation, Phase
from hami_sandbox.runtime.states import UnresolvableError
from sandbox.tests.unit.runtime.bench import UID, Bench
from tests.unit.agent.card_nodes import CardNode
from tests.unit.agent.preparing import ALLOCATION_ID, PlainStates

MIB, GIB = 1 << 20, 1 << 30
NAME = f"{layout.CDI_KIND}={ALLOCATION_ID}"


class Node(CardNode):
    """A node of the bench: its runtime finds the agent's CDI specs."""

    def __init__(self, bench: Bench, states: type[StateFiles]) -> None:
        root = bench.folder / "node"
        root.mkdir()
        super().__init__(root, states)
        bench.runtime = Runtime(
            bench.folder / "rt", cdi_dirs=[self.layout.cdi_dir], lifeline=bench.reading_end
        )

    def state(self) -> state_file.State:
        return state_file.decode(self.layout.state(ALLOCATION_ID).read_bytes())

    def peaks(self) -> list[dict[str, Any]]:
        text = (self.desk.root / "gpus/peaks.jsonl").read_text()
        return [json.loads(line) for line in text.splitlines()]

    def forget(self) -> None:
        with contextlib.suppress(OSError):
            self.preparer.forget(ALLOCATION_ID)


@pytest.fixture
def node(bench: Bench, request: pytest.FixtureRequest) -> Iterator[Node]:
    made = Node(bench, getattr(request, "param", PlainStates))
    try:
        yield made
    finally:
        made.forget()


async def test_a_share_is_seen_and_held(bench: Bench, node: Node) -> None:
    node.prepare(2048)
    container = await bench.start(
        "gpu-work", "--memory", "1Gi", "--then-ask", "4Gi", cdi_devices=(NAME,)
    )
    lines = await bench.said(container, 3)
    assert lines[0].startswith(f"cards 1, total {2 * GIB} bytes, free ")
    assert lines[1:] == [
        f"cuMemAlloc {GIB}: CUDA_SUCCESS",
        f"cuMemAlloc {4 * GIB}: CUDA_ERROR_OUT_OF_MEMORY",
    ]
    [device] = node.state().cards
    assert device.uuid == node.cards[1].uuid
    assert device.limit == 2 * GIB
    assert GIB < device.used < 2 * GIB
    assert device.refused >= 1
    running = bench.runtime.state(container)
    assert [entry.pid for entry in node.state().processes] == [running.pid]
    assert node.states.busy(ALLOCATION_ID)
    if bench.runtime.isolation is Isolation.NAMESPACES:  # by which the monitor knows its own
        trace = Processes(Path("/proc")).trace(running.pid)
        assert trace is not None
        assert trace.allocation_ids == (ALLOCATION_ID,)
    await bench.runtime.stop(container, 10)
    assert bench.runtime.state(container).exit_code == 0
    assert not node.states.busy(ALLOCATION_ID)
    [peak] = {line["owner"] for line in node.peaks() if line["owner"]}
    assert peak == f"{UID}/main"
    await bench.runtime.remove(container)


@pytest.mark.parametrize(
    "node",
    [
        PlainStates,
        pytest.param(
            StateFiles, marks=pytest.mark.skipif(os.geteuid() != 0, reason="mounting takes root")
        ),
    ],
    indirect=True,
)
async def test_a_restarted_container_goes_on_with_the_same_share(bench: Bench, node: Node) -> None:
    node.prepare(2048)
    for attempt in (0, 1):
        state = await bench.run(
            *("gpu-work", "--memory=1Gi", "--seconds=0"), cdi_devices=(NAME,), attempt=attempt
        )
        assert state.exit_code == 0, bench.lines(state)
    state = await bench.run("gpu-work", "--memory=2Gi", cdi_devices=(NAME,))
    assert state.exit_code == 2
    assert bench.lines(state)[-1] == f"cuMemAlloc {2 * GIB}: CUDA_ERROR_OUT_OF_MEMORY"


async def test_the_native_probe_runs_as_well(bench: Bench, node: Node) -> None:
    node.prepare(2048)
    script = f"printf 'init\\ndevice 0\\ninfo\\ntake alloc x {3 * GIB}\\n' | probe"
    state = await bench.run("sh", "-c", script, cdi_devices=(NAME,))
    *begun, info, refused = bench.lines(state)
    assert begun == ["ok", "ok"]
    assert info.split()[2] == str(2 * GIB)
    assert refused.split()[:2] == ["error", "2"]


async def test_names_are_resolved_when_the_container_is_made(bench: Bench, node: Node) -> None:
    with pytest.raises(
        UnresolvableError,
        match=f"^failed to inject CDI devices: unresolvable CDI devices {NAME}$",
    ):
        await bench.start("true", cdi_devices=(NAME,))
    assert bench.runtime.list() == ()
    node.prepare(2048)
    container = await bench.start("true", cdi_devices=(NAME,))
    assert (await bench.ended(container)).phase is Phase.EXITED


async def test_a_container_without_a_card_has_no_driver(bench: Bench, node: Node) -> None:
    state = await bench.run("gpu-work", "--memory=1Gi")
    assert state.exit_code == 4
    assert bench.lines(state)[0].startswith("no driver: libcuda.so.1")
