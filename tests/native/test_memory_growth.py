"""Memory that the driver takes: loaded code, local memory, stacks.

Local memory and stacks can be computed, so they are refused before they exceed the limit. Loaded
code is seen only afterwards: it is charged at once, and the next allocation is refused.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.native.container import CONTEXT, Container
from tests.native.probing import GIB, MIB, OUT_OF_MEMORY

LIMIT = GIB
THREADS = 132 * 2048  # of the card, all at once
#: Code is loaded when a module is, not at the first launch: what is left is local memory alone.
EAGER = {"CUDA_MODULE_LOADING": "EAGER"}


@pytest.mark.parametrize("how", ["load", "library"])
def test_loaded_code_is_charged(tmp_path: Path, how: str) -> None:
    with Container(tmp_path, (LIMIT,)) as box:
        probe = box.started()
        room = LIMIT - CONTEXT - 64 * MIB
        probe.do(f"take alloc most {room}")
        probe.do(f"module {how} big code {96 * MIB}")
        probe.do("launch big")  # code is loaded when it is first used
        probe.do("ctx sync")
        assert box.physical() >= CONTEXT + room + 96 * MIB
        probe.refused(f"take alloc one {2 * MIB}")
        probe.refused("take alloc small 1024")
        assert box.used() >= box.physical()
        probe.do("free most")
        probe.do(f"take alloc again {room - 64 * MIB}")
        assert box.used() >= box.physical()


def test_unloaded_code_is_given_back(tmp_path: Path) -> None:
    with Container(tmp_path, (LIMIT,)) as box:
        probe = box.started()
        probe.do(f"module load big code {96 * MIB}")
        probe.do("launch big")
        probe.do("ctx sync")
        probe.refused(f"take alloc large {LIMIT - CONTEXT - 64 * MIB}")
        probe.do("module unload big")
        left = box.physical()
        probe.do(f"take alloc large {LIMIT - left - 2 * MIB}")
        assert box.peak() <= LIMIT


@pytest.mark.parametrize("how", ["load", "library"])
def test_kernel_with_too_much_local_memory_is_refused(tmp_path: Path, how: str) -> None:
    with Container(tmp_path, (LIMIT,)) as box:
        probe = box.started()
        answers = [
            probe.ask(line)
            for line in (f"module {how} deep local 16384", "module function deep", "launch deep")
        ]
        assert next(answer.code for answer in answers if not answer.ok) == OUT_OF_MEMORY
        assert box.peak() <= LIMIT
        probe.do(f"take alloc piece {256 * MIB}")  # all else still works


def test_kernel_with_local_memory_that_fits_runs(tmp_path: Path) -> None:
    local = (4096 - 1024) * THREADS
    limit = CONTEXT + local + 128 * MIB
    with Container(tmp_path, (limit,), names=EAGER) as box:
        probe = box.started()
        probe.do("module load deep local 4096")
        probe.do("launch deep")
        probe.do("ctx sync")
        assert CONTEXT + local <= box.physical() <= box.used() <= limit
        probe.refused(f"take alloc large {192 * MIB}")
        assert box.peak() <= limit


def test_room_for_a_known_kernel_is_kept(tmp_path: Path) -> None:
    """Launches are not watched, so what a kernel will take is charged when it is looked up."""
    local = (4096 - 1024) * THREADS
    limit = CONTEXT + local + 64 * MIB
    with Container(tmp_path, (limit,), names=EAGER) as box:
        probe = box.started()
        probe.do("module load deep local 4096")
        probe.do("module function deep")
        probe.fill("alloc", 2 * MIB)
        probe.do("launch deep")
        probe.do("ctx sync")
        assert box.peak() <= limit


def test_stack_limit_is_refused_or_charged(tmp_path: Path) -> None:
    stack = (4096 - 1024) * THREADS
    limit = CONTEXT + stack + 64 * MIB
    with Container(tmp_path, (limit,), names=EAGER) as box:
        probe = box.started()
        probe.refused("limit stack 16384")
        assert probe.number("limit stack") < 16384
        probe.do("limit stack 4096")
        probe.do("module load plain empty")
        probe.do("launch plain")
        probe.do("ctx sync")
        probe.refused(f"take alloc large {96 * MIB}")
        assert box.peak() <= limit
        probe.do("limit stack 1024")
        probe.do("ctx sync")
        probe.do(f"take alloc large {96 * MIB}")
        assert box.peak() <= limit
