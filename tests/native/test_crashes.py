"""SIGKILL at every labelled point of the library: others have the whole limit.

The labels are read from the sources, so a new one is tested as soon as it is written. A label that
the victim's work never reaches fails the test: then the work below must be extended.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from native import build
from tests.native.container import CONTEXT, SANITIZER, SLACK, Container
from tests.native.probing import GIB, MIB, OUT_OF_MEMORY, DiedError, Probe

LIMIT = 3 * GIB
LABELS = sorted(
    label
    for path in (build.SOURCES / "libvgpu").glob("*.c")
    for label in re.findall(r'TEST_POINT\("([^"]+)"\)', path.read_text())
)
#: What a process does between its start and its death: something of everything.
WORK = [
    "init",
    "device 0",
    "take alloc small 1024",
    "take alloc second 700000",
    f"take alloc large {64 * MIB}",
    f"take pitch rows {8 * MIB}",
    f"take managed shared {16 * MIB}",
    f"take async ordered {40 * MIB}",
    "pool create own",
    f"take pool:own pooled {8 * MIB}",
    f"take vmm handle {4 * MIB}",
    f"take vmmkept kept {4 * MIB}",
    f"take vmmlost lost {4 * MIB}",
    f"take array2d flat {4 * MIB}",
    "take array2d little 65536",
    f"take array3d cube {4 * MIB}",
    f"take mipmap levels {4 * MIB}",
    f"take graph graph {32 * MIB}",
    "take stream stream 0",
    "take context context 0",
    "module load code empty",
    "module function code",
    "limit stack 2048",
    f"take alloc refused {LIMIT}",
    f"fill alloc {32 * MIB}",
    "drop",
    "limit stack 1024",
    *(
        f"give {name}"
        for name in (
            *("small", "second", "large", "rows", "shared", "ordered", "pooled", "handle", "kept"),
            *("lost", "flat", "little", "cube", "levels", "graph", "stream", "context"),
        )
    ),
    "pool destroy own",
    "ctx sync",
    "release 0",
]


def test_there_are_labels() -> None:
    assert len(LABELS) == len(set(LABELS)) > 20


def dies(box: Container, label: str, times: int) -> bool:
    """Run a process that is killed when it passes `label` so often; tell whether it was."""
    victim = box.probe(names={"VGPU_KILL_AT": f"{label}:{times}"})
    try:
        for line in WORK:
            answer = victim.ask(line)
            assert not answer.text.startswith("bad"), f"{line}: {answer.text}"
    except DiedError:
        assert victim.wait() == -9
        return True
    victim.end()
    return False


def has_the_full_budget(box: Container, probe: Probe) -> None:
    others = box.physical() - CONTEXT
    filled = probe.fill("alloc", 16 * MIB)
    assert filled.code == OUT_OF_MEMORY
    assert filled.bytes >= LIMIT - others - CONTEXT - SLACK
    assert box.physical() <= box.used() <= LIMIT
    assert box.peak() <= LIMIT
    probe.do("drop")


@pytest.mark.parametrize("times", [1] if SANITIZER else [1, 4])
@pytest.mark.parametrize("label", LABELS)
def test_death_at_a_label_costs_nobody_else(tmp_path: Path, label: str, times: int) -> None:
    with Container(tmp_path, (LIMIT,), library="libvgpu-test.so") as box:
        survivor = None
        if label.startswith("state.init."):
            box.state_path.write_bytes(b"left by something else")  # so that the victim makes it
        else:
            survivor = box.started()
            assert dies(box, "state.lock.held", 12)  # the victim finds a lock whose owner died
        died = dies(box, label, times)
        assert died or times > 1, f"{label} was never reached"
        if survivor is not None:
            has_the_full_budget(box, survivor)
            survivor.end()
        has_the_full_budget(box, box.started())
