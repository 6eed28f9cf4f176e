"""Promises that only a container as a whole can show.

Users of other systems suffer where these are not kept. tests/promises.toml names them beside the
tests of the parts.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from hami.wire import file_layout
from tests.native.container import CONTEXT, SLACK, Container
from tests.native.probing import GIB, MIB, OUT_OF_MEMORY, Probe

HOUR = 3_600_000
POD_NAMES = {"CUDA_DEVICE_MEMORY_LIMIT": "1g", "CUDA_DEVICE_MEMORY_LIMIT_0": "1g"}


def login(box: Container) -> Probe:
    """Start a process as a login does: of the pod's own environment nothing is left."""
    kept = {name: value for name, value in box.environment().items() if name not in POD_NAMES}
    del kept["LD_PRELOAD"]  # the probe's own, added after this
    return box.probe(before=("env", "-i", *(f"{name}={value}" for name, value in kept.items())))


def test_a_login_without_the_pods_environment_shares_the_limit(tmp_path: Path) -> None:
    with Container(tmp_path, (2 * GIB,), names=POD_NAMES) as box:
        service, shell = box.started(), login(box).start()
        assert shell.info() == service.info() == (2 * GIB - 2 * CONTEXT, 2 * GIB)
        filled = shell.fill("alloc", 16 * MIB)
        assert filled.code == OUT_OF_MEMORY
        assert filled.bytes >= 2 * GIB - 2 * CONTEXT - SLACK
        service.refused(f"take alloc more {64 * MIB}")
        assert box.peak() <= 2 * GIB


def wait_until_it_stands(box: Container, probe: Probe, pending: int) -> None:
    """Wait until a process has an entry, and has reserved so much for its context."""
    deadline = time.monotonic() + 30
    while not any(
        entry.pid == probe.pid and entry.usage[0].pending == pending
        for entry in box.state().processes
    ):
        assert time.monotonic() < deadline
        time.sleep(0.01)


# NVML is asked before a context is reserved: what other processes left on the card counts, too.
@pytest.mark.parametrize(
    ("function", "pending"), [("cuDevicePrimaryCtxRetain", CONTEXT), ("nvmlInit_v2", 0)]
)
def test_a_process_that_stands_still_at_its_start_holds_up_nobody(
    tmp_path: Path, function: str, pending: int
) -> None:
    with Container(tmp_path, (8 * GIB,)) as box:
        first = box.started()
        slow = box.probe(names={"FAKEGPU_FAULTS": f"{function} delay {HOUR}"})
        slow.tell("init")
        slow.tell("device 0")
        wait_until_it_stands(box, slow, pending)
        others = [box.probe() for _ in range(8)]
        for other in others:
            other.tell("init")
            other.tell("device 0")
        for other in others:
            assert other.hear("init").ok
            assert other.hear("device 0").ok
        assert box.usage(slow).pending == pending  # it is at it still
        assert box.physical() == (1 + len(others)) * CONTEXT
        first.do(f"take alloc a {64 * MIB}")


@pytest.mark.parametrize("level", ["", "0", "4", "debug"])
def test_stderr_is_that_of_a_run_without_the_library(tmp_path: Path, level: str) -> None:
    with Container(tmp_path, (GIB,)) as box:
        with box.outsider().start() as without:
            without.do(f"take alloc a {64 * MIB}")
        names = {"LIBCUDA_LOG_LEVEL": level} if level else {}
        limited = box.probe(names=names).start()
        assert limited.fill("alloc", 16 * MIB).code == OUT_OF_MEMORY
        limited.refused(f"take alloc more {64 * MIB}")
        limited.kill()
        assert limited.noise == without.noise == ""


def test_a_call_that_a_newer_driver_adds_passes_and_is_counted(tmp_path: Path) -> None:
    with Container(tmp_path, (GIB,)) as box:
        probe = box.started()
        assert probe.do("where cuCtxCreate_v4")[0] == "libvgpu.so"
        assert box.state().unknown_entry_points == 0
        assert probe.do("where cuCtxCreate_v5") == ["libcuda.so.1", "cuCtxCreate_v5"]
        assert box.state().unknown_entry_points == 1
        probe.do("take alloc a 1024")


@pytest.mark.parametrize("made_longer", [False, True])
def test_what_the_library_writes_is_bounded_in_size(tmp_path: Path, made_longer: bool) -> None:
    """However many processes come and go, and whatever the program made of the files before."""
    written = tmp_path / "written"
    written.mkdir()
    names = {"CUDA_DEVICE_MEMORY_SHARED_CACHE": str(written / "region")}
    with Container(tmp_path, (4 * GIB,), names=names) as box:
        box.started().do(f"take alloc first {MIB}")
        before = sizes(box, written)
        assert before == {"state": file_layout.STATE.size, "region": 2_008_953}
        if made_longer:
            for path in (box.state_path, written / "region"):
                os.truncate(path, 64 * MIB)
            before = sizes(box, written)
        for round_number in range(4):
            probes = [box.started() for _ in range(3)]
            for seed, probe in enumerate(probes):
                probe.do(f"mix alloc,async,vmmkept,managed {seed + 1} 40 256 {8 * MIB}")
                assert probe.fill("alloc", 64 * MIB).code == OUT_OF_MEMORY
                if round_number % 2:
                    probe.kill()
                else:
                    probe.end()
        assert sizes(box, written) == before


def sizes(box: Container, written: Path) -> dict[str, int]:
    found = {path.name: path.stat().st_size for path in written.iterdir()}
    return {"state": box.state_path.stat().st_size, **found}
