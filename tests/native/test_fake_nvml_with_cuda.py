"""Both halves of the stand-in driver in one process: two copies of the store.

A lock that one of them gave away by closing a file, or a process that one takes for dead because it
cannot see its own lock, would free memory that is in use.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from hami_sandbox import gpus

PROGRAM = """
import ctypes, json, os, sys, pynvml as n
cuda = ctypes.CDLL("libcuda.so.1")
def alloc(mib):
    return cuda.cuMemAlloc_v2(ctypes.byref(ctypes.c_uint64()), ctypes.c_size_t(mib << 20))
def open_cuda():
    device, context = ctypes.c_int(), ctypes.c_void_p()
    assert cuda.cuInit(0) == 0
    assert cuda.cuDeviceGet(ctypes.byref(device), 0) == 0
    assert cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), device) == 0
    assert cuda.cuCtxSetCurrent(context) == 0
def see():
    h = n.nvmlDeviceGetHandleByIndex(0)
    mine = {p.pid: p.usedGpuMemory >> 20 for p in n.nvmlDeviceGetComputeRunningProcesses(h)}
    assert set(mine) <= {os.getpid(), os.getppid()}, mine
    return [n.nvmlDeviceGetMemoryInfo(h).used >> 20, mine.get(os.getpid()), mine.get(os.getppid())]
seen = []
"""


@pytest.fixture
def node(tmp_path: Path) -> Path:
    gpus.write_node(tmp_path / "node", [("H200", 1)], name="n")
    return tmp_path / "node"


def ask(built: Path, node: Path, code: str) -> Any:
    done = subprocess.run(
        [sys.executable, "-c", f"{PROGRAM}{code}\nprint(json.dumps(seen))"],
        env={
            **{name: value for name, value in os.environ.items() if "_VISIBLE_" not in name},
            "FAKEGPU_DIR": str(node),
            "LD_LIBRARY_PATH": str(built / "fakegpu"),
        },
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("first", ["open_cuda(); n.nvmlInit()", "n.nvmlInit(); open_cuda()"])
def test_a_process_sees_itself_with_its_context_and_its_memory(
    built: Path, node: Path, first: str
) -> None:
    assert ask(built, node, f"{first}; seen += [see()]; alloc(100); seen += [see()]") == [
        [518, 518, None],
        [618, 618, None],
    ]


def test_the_end_of_nvml_takes_nothing_from_cuda(built: Path, node: Path) -> None:
    code = """
open_cuda()
for _ in range(3):
    n.nvmlInit()
    seen.append(see())
    n.nvmlShutdown()
n.nvmlInit()
seen.append(see())
"""
    assert ask(built, node, code) == [[518, 518, None]] * 4


def test_a_child_that_looks_takes_nothing_from_its_parent(built: Path, node: Path) -> None:
    code = """
open_cuda()
n.nvmlInit()
see()
pid = os.fork()
if not pid:
    assert see() == [518, None, 518], see()
    os._exit(0)
assert os.waitpid(pid, 0)[1] == 0
seen.append(see())
"""
    assert ask(built, node, code) == [[518, 518, None]]


def test_another_program_in_the_same_process_has_nothing(built: Path, node: Path) -> None:
    code = f"""
open_cuda()
n.nvmlInit()
assert see() == [518, 518, None]
os.execv(sys.executable, [sys.executable, "-c", {PROGRAM!r} + '''
n.nvmlInit()
print(json.dumps(see()))
'''])
"""
    assert ask(built, node, code) == [0, None, None]
