"""Kernels of libraries: their local memory must fit wherever they can run.

A program in plain Python (ctypes) asks for a kernel whose local memory exceeds the limit, before it
has a context or while another card's is current, and launches what it got. The same with a function
of a module: what is refused is not left where a careless program would find it.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.native.container import CONTEXT, SANITIZER, Container
from tests.native.probing import GIB, OUT_OF_MEMORY

LIMIT = 2 * GIB
ORDERS = ["before any context", "other card", "of a module"]
pytestmark = pytest.mark.skipif(bool(SANITIZER), reason="Python itself is not instrumented")

PROGRAM = """
import ctypes, json, sys
from ctypes import byref, c_int, c_uint, c_void_p
sys.path.insert(0, sys.argv[1])
from tests.gpu import kernels
cuda = ctypes.CDLL("libcuda.so.1")
said = {}
def call(key, name, *arguments):
    said[key] = getattr(cuda, name)(*arguments)
    return said[key]
def context_on(card):
    made = c_void_p()
    if call(f"context {card}", "cuDevicePrimaryCtxRetain", byref(made), c_int(card)) == 0:
        call("current", "cuCtxSetCurrent", made)
call("init", "cuInit", c_uint(0))
if sys.argv[2] == "other card":
    context_on(0)
library, kernel = c_void_p(), c_void_p()
image = kernels.local_memory(int(sys.argv[3]))
if sys.argv[2] == "of a module":
    context_on(0)
    call("load", "cuModuleLoadData", byref(library), image)
    call("kernel", "cuModuleGetFunction", byref(kernel), library, b"locals")
else:
    call("load", "cuLibraryLoadData", byref(library), image, None, None, 0, None, None, 0)
    call("kernel", "cuLibraryGetKernel", byref(kernel), library, b"locals")
said["found"] = kernel.value is not None
context_on(1 if sys.argv[2] == "other card" else 0)
if kernel.value is not None:
    parameters = (c_void_p * 3)(*(ctypes.addressof(c_void_p()) for _ in range(3)))
    call("launch", "cuLaunchKernel", kernel, 1, 1, 1, 1, 1, 1, 0, None, parameters, None)
    call("wait", "cuCtxSynchronize")
print(json.dumps(said))
"""


def run(box: Container, order: str, local: int) -> dict[str, int]:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(Path(__file__).parents[2]), order, str(local)],
        env=box.environment(),
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stderr == ""
    said: dict[str, int] = json.loads(done.stdout)
    return said


@pytest.mark.parametrize("order", ORDERS)
def test_a_kernel_that_needs_too_much_runs_nowhere(tmp_path: Path, order: str) -> None:
    with Container(tmp_path, (LIMIT, LIMIT)) as box:
        said = run(box, order, 16384)
        assert OUT_OF_MEMORY in said.values()
        assert "wait" not in said or said["launch"] != 0
        for card in (0, 1):
            assert box.peak(card) <= LIMIT


@pytest.mark.parametrize("order", ORDERS)
def test_a_kernel_that_fits_runs_and_is_charged_where_it_runs(tmp_path: Path, order: str) -> None:
    with Container(tmp_path, (LIMIT, LIMIT)) as box:
        said = run(box, order, 4096)
        assert set(said.values()) <= {0, 1}
        assert said["launch"] == 0
        assert CONTEXT < box.peak(1 if order == "other card" else 0) <= LIMIT
