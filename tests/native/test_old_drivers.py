"""Drivers that lack functions: the stand-in without the names that are newer.

A name that is overwritten in a library's symbol table is not found by dlsym, nor by
cuGetProcAddress: to libvgpu and to programs that is an older driver.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterable
from pathlib import Path

import pytest

from native import build
from tests.native.container import CONTEXT, SLACK, Container, build_in_use
from tests.native.probing import GIB, MIB, OUT_OF_MEMORY

VERSIONS = (build.SOURCES / "fakegpu/cuda_entry_versions.def").read_text()
OLD_DRIVERS = {"R470": 11040, "R450": 11000}
LISTS = [f"nvmlDeviceGet{kind}RunningProcesses" for kind in ("Compute", "Graphics", "MPSCompute")]


def without(library: Path, names: Iterable[str], copy: Path) -> None:
    """Copy a library that does not have `names`."""
    content = library.read_bytes()
    for name in names:
        content = content.replace(b"\0" + name.encode() + b"\0", b"\0_" + name[1:].encode() + b"\0")
    copy.write_bytes(content)


def driver_before(cuda: int, folder: Path, lists: Iterable[str]) -> Path:
    """Make a driver of a CUDA version, whose NVML lacks these lists of processes."""
    newer = [
        name
        for since, name in re.findall(r"^VARIANT\(\w+, (\d+), (\w+)\)", VERSIONS, re.MULTILINE)
        if int(since) > cuda
    ]
    assert "cuMemPrefetchAsync_v2" in newer
    stand_in = build_in_use().folder / "fakegpu"
    folder.mkdir()
    twins = [name + ending for name in newer for ending in ("", "_ptsz", "_ptds")]
    without(stand_in / "libcuda.so.1", twins, folder / "libcuda.so.1")
    without(stand_in / "libnvidia-ml.so.1", lists, folder / "libnvidia-ml.so.1")
    return folder


@pytest.mark.parametrize(("driver", "suffixes"), [("R470", ["_v3"]), ("R450", ["_v3", "_v2"])])
def test_a_driver_without_the_newest_process_list_is_measured(
    tmp_path: Path, driver: str, suffixes: list[str]
) -> None:
    lists = [name + suffix for name in LISTS for suffix in suffixes]
    names = {"LD_LIBRARY_PATH": str(driver_before(OLD_DRIVERS[driver], tmp_path / "driver", lists))}
    # Nobody knows what a context costs: a guess would be 640 MiB.
    with Container(tmp_path, (2 * GIB,), context_bytes=0, names=names) as box:
        first, second = box.started(), box.started()
        assert not first.ask("where nvmlDeviceGetComputeRunningProcesses_v3").ok
        assert box.used() == box.physical() == 2 * CONTEXT
        assert box.usage(second).overhead == CONTEXT
        assert box.state().cards[0].context_bytes == CONTEXT
        for kind in ("alloc", "vmm", "array2d"):
            filled = first.fill(kind, 16 * MIB)
            assert filled.code == OUT_OF_MEMORY
            assert filled.bytes >= 2 * GIB - 2 * CONTEXT - SLACK
            first.do("drop")
        second.kill()
        first.do(f"take alloc large {2 * GIB - CONTEXT - SLACK}")
        assert box.peak() <= 2 * GIB


def test_a_container_without_nvml_is_charged_by_estimate(tmp_path: Path) -> None:
    folder = tmp_path / "driver"
    folder.mkdir()
    shutil.copy(build_in_use().folder / "fakegpu/libcuda.so.1", folder)
    with Container(
        tmp_path, (2 * GIB,), context_bytes=0, names={"LD_LIBRARY_PATH": str(folder)}
    ) as box:
        probe = box.started()
        assert box.used() == 640 * MIB > box.physical() == CONTEXT
        assert probe.fill("alloc", 16 * MIB).code == OUT_OF_MEMORY
        assert box.peak() <= 2 * GIB
