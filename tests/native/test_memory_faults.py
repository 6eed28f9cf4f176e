"""The driver fails by itself: its answer is passed on, accounts stay exact."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.native.container import CONTEXT, SLACK, Container, build_in_use
from tests.native.probing import GIB, MIB, OUT_OF_MEMORY

LIMIT = 2 * GIB
UNKNOWN = 999


@pytest.mark.parametrize("code", [UNKNOWN, OUT_OF_MEMORY])
@pytest.mark.parametrize(
    ("kind", "function"),
    [
        ("alloc", "cuMemAlloc_v2"),
        ("pitch", "cuMemAllocPitch_v2"),
        ("managed", "cuMemAllocManaged"),
        ("async", "cuMemAllocAsync"),
        ("vmm", "cuMemCreate"),
        ("vmmkept", "cuMemMap"),
        ("array2d", "cuArrayCreate_v2"),
        ("array3d", "cuArray3DCreate_v2"),
        ("mipmap", "cuMipmappedArrayCreate"),
        ("graph", "cuGraphInstantiateWithFlags"),
        ("graph", "cuGraphLaunch"),
        ("context", "cuCtxCreate_v2"),
        ("stream", "cuStreamCreate"),
    ],
)
def test_failed_allocation_costs_nothing(
    tmp_path: Path, kind: str, function: str, code: int
) -> None:
    limit = 4 * GIB
    with Container(tmp_path, (limit,)) as box:
        # The second call fails: the first may be one that libvgpu makes to learn a size.
        box.names["FAKEGPU_FAULTS"] = f"{function} 2 {code}"
        probe = box.started()
        answers = [probe.ask(f"take {kind} piece{number} {64 * MIB}") for number in range(4)]
        made = [number for number, answer in enumerate(answers) if answer.ok]
        if len(made) < 4:  # what libvgpu only asks for itself may fail without anybody noticing
            assert [answer.code for answer in answers if not answer.ok] == [code]
        for number in made:
            probe.do(f"give piece{number}")
        probe.do("graph trim")
        probe.do("ctx sync")
        left = 4 * MIB if kind == "stream" else 0  # streams are not given back by the driver
        assert CONTEXT <= box.physical() <= CONTEXT + left
        assert probe.info()[0] == limit - box.physical()
        assert box.used() == box.physical()


@pytest.mark.parametrize(
    ("kind", "function"),
    [
        ("alloc", "cuMemFree_v2"),
        ("async", "cuMemFreeAsync"),
        ("vmm", "cuMemRelease"),
        ("vmmlost", "cuMemUnmap"),
        ("array2d", "cuArrayDestroy"),
        ("mipmap", "cuMipmappedArrayDestroy"),
        ("context", "cuCtxDestroy_v2"),
    ],
)
def test_memory_that_could_not_be_freed_is_still_charged(
    tmp_path: Path, kind: str, function: str
) -> None:
    with Container(tmp_path, (LIMIT,)) as box:
        probe = box.started()
        probe.do(f"take {kind} piece {64 * MIB}")
        box.node.faults(f"{function} 1+ {UNKNOWN}")
        assert probe.ask("give piece").code == UNKNOWN
        assert box.physical() > CONTEXT
        probe.info()
        assert box.physical() <= box.used() <= LIMIT
        probe.fill("alloc", 16 * MIB)
        assert box.peak() <= LIMIT


def test_context_that_cannot_be_made_costs_nothing(tmp_path: Path) -> None:
    with Container(tmp_path, (LIMIT,)) as box:
        box.names["FAKEGPU_FAULTS"] = f"cuDevicePrimaryCtxRetain 1 {UNKNOWN}"
        probe = box.probe()
        probe.do("init")
        assert probe.ask("device 0").code == UNKNOWN
        assert box.used() == box.physical() == 0
        probe.do("device 0")
        assert box.used() == CONTEXT


def test_full_card_is_an_ordinary_refusal(tmp_path: Path) -> None:
    with Container(tmp_path, (LIMIT,)) as box:
        card = box.node.cards[0]
        box.node.faults(f"card {card.uuid} hide {card.memory - GIB}")
        probe = box.started()
        filled = probe.fill("alloc", 16 * MIB)
        assert filled.code == OUT_OF_MEMORY
        assert filled.bytes <= GIB - CONTEXT
        assert box.used() == CONTEXT + filled.bytes
        box.node.faults()
        probe.do("drop")
        assert probe.fill("alloc", 16 * MIB).bytes >= LIMIT - CONTEXT - SLACK


@pytest.mark.parametrize("kind", ["alloc", "async", "vmmkept", "array2d", "graph"])
def test_without_nvml_the_cap_still_holds(tmp_path: Path, kind: str) -> None:
    """An image may lack NVML: then the agent's figure for a context is charged."""
    with Container(tmp_path, (LIMIT,)) as box:
        alone = tmp_path / "driver"
        alone.mkdir()
        (alone / "libcuda.so.1").symlink_to(build_in_use().folder / "fakegpu" / "libcuda.so.1")
        box.names["LD_LIBRARY_PATH"] = str(alone)
        first, second = box.started(), box.started()
        for probe in (first, second):
            assert probe.fill(kind, 32 * MIB).code == OUT_OF_MEMORY
        assert LIMIT - 2 * SLACK <= box.physical() <= box.used() <= LIMIT
        first.kill()
        second.do("drop")
        second.do("ctx sync")
        second.fill(kind, 32 * MIB)
        assert box.physical() >= LIMIT - SLACK
        assert box.peak() <= LIMIT
