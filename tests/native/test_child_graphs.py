"""Graphs in graphs: their allocations are charged when made ready.

A program in plain Python (ctypes) puts a graph that allocates into another one, which has nothing
of its own, and launches that if it was allowed to make it ready.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.native.container import CONTEXT, SANITIZER, Container
from tests.native.probing import GIB, MIB, OUT_OF_MEMORY

LIMIT = GIB
pytestmark = pytest.mark.skipif(bool(SANITIZER), reason="Python itself is not instrumented")

PROGRAM = """
import ctypes, json, sys
from ctypes import byref, c_byte, c_int, c_size_t, c_uint64, c_void_p
sys.path.insert(0, sys.argv[1])
from tests.native.fake_cuda import AllocNode, Driver
class ChildNode(ctypes.Structure):
    _fields_ = [("type", c_int), ("reserved", c_int * 3),
                ("graph", c_void_p), ("ownership", c_int), ("rest", c_byte * 236)]
driver = Driver("libcuda.so.1")
driver.new("cuCtxCreate_v2", 0, 0)
outer, inner = driver.new("cuGraphCreate", 0), driver.new("cuGraphCreate", 0)
memory = AllocNode(type=1, place=1, device=0, size=int(sys.argv[2]))
driver.new("cuGraphAddMemAllocNode", inner, None, c_size_t(0), byref(memory))
moved = ChildNode(type=4, graph=inner, ownership=1)
driver.new("cuGraphAddNode", outer, None, c_size_t(0), byref(moved))
ready = c_void_p()
said = {"ready": driver.call("cuGraphInstantiateWithFlags", byref(ready), outer, c_uint64(0))}
if said["ready"] == 0:
    said["launch"] = driver.call("cuGraphLaunch", ready, None)
    driver.ok("cuCtxSynchronize")
print(json.dumps(said))
"""


@pytest.mark.parametrize(
    ("size", "said"),
    [(256 * MIB, {"ready": 0, "launch": 0}), (640 * MIB, {"ready": OUT_OF_MEMORY})],
    ids=["fits", "too large"],
)
def test_memory_of_a_child_graph_counts(tmp_path: Path, size: int, said: dict[str, int]) -> None:
    with Container(tmp_path, (LIMIT,)) as box:
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM, str(Path(__file__).parents[2]), str(size)],
            env=box.environment(),
            capture_output=True,
            text=True,
            check=True,
        )
        assert (json.loads(done.stdout), done.stderr) == (said, "")
        assert box.peak() == CONTEXT + (size if said["ready"] == 0 else 0)
