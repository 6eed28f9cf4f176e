"""Nanoseconds per driver call: loops.c, built by the machine's compiler."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

from tests.gpu.driver import Cuda, CudaError

SOURCE = Path(__file__).with_name("loops.c")


def build(folder: Path) -> Path | None:
    """Build the loops once per run; None on a machine without a C compiler."""
    library = folder / "loops.so"
    if not library.exists():
        compiler = next(
            (found for name in ("cc", "gcc", "clang") if (found := shutil.which(name))), None
        )
        if compiler is None:
            return None
        part = folder / f"loops.{os.getpid()}.so"
        subprocess.run(
            [compiler, "-O2", "-shared", "-fPIC", "-o", part, SOURCE], check=True, timeout=60
        )
        part.rename(library)
    return library


class Loops:
    def __init__(self, library: Path, cuda: Cuda) -> None:
        self.library = ctypes.CDLL(str(library))
        self.cuda = cuda

    def run(self, loop: str, functions: list[str], *arguments: Any) -> float:
        """Run one loop over the named driver functions; return ns per turn."""
        timed = self.library[loop]
        timed.restype = ctypes.c_double
        addresses = [ctypes.c_void_p(self.cuda.address(name)) for name in functions]
        result = float(timed(*addresses, *arguments))
        if result < 0:
            raise CudaError(round(-1 - result), loop)
        return result

    def alloc_free(self, size: int, turns: int) -> float:
        names = ["cuMemAlloc_v2", "cuMemFree_v2"]
        return self.run("time_alloc_free", names, ctypes.c_size_t(size), turns)

    def alloc(self, size: int, pointers: ctypes.Array[ctypes.c_uint64], count: int) -> float:
        return self.run("time_alloc", ["cuMemAlloc_v2"], ctypes.c_size_t(size), pointers, count)

    def free(self, pointers: ctypes.Array[ctypes.c_uint64], count: int) -> float:
        return self.run("time_free", ["cuMemFree_v2"], pointers, count)

    def async_pair(self, size: int, turns: int) -> float:
        stream = self.cuda.stream()
        names = ["cuMemAllocAsync", "cuMemFreeAsync"]
        return self.run("time_async_pair", names, ctypes.c_size_t(size), stream, turns)

    def launch(self, function: ctypes.c_void_p, turns: int) -> float:
        return self.run("time_launch", ["cuLaunchKernel"], function, None, turns)

    def pool_attribute(self, pool: ctypes.c_void_p, attribute: int, turns: int) -> float:
        return self.run("time_attribute", ["cuMemPoolGetAttribute"], pool, attribute, turns)

    def info(self, turns: int) -> float:
        return self.run("time_info", ["cuMemGetInfo_v2"], turns)
