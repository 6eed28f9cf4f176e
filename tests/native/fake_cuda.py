"""The stand-in libcuda.so.1 driven by ctypes, in processes of its own.

A case is a function of a test module whose first argument is the driver; it runs in a process that
has the card, in a context that is made for it and destroyed after it, and gives back plain values.
"""

from __future__ import annotations

import ctypes
import multiprocessing
import os
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import contextmanager
from ctypes import byref, c_char_p, c_float, c_int, c_size_t, c_uint, c_uint64, c_void_p
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, TypeVar

from hami_sandbox import gpus

MIB = 1 << 20
MILLISECOND = 1_000_000
LONG = 1000 * MILLISECOND
PATIENCE = 60
INVALID_VALUE, OUT_OF_MEMORY, INVALID_HANDLE, NOT_FOUND, NOT_READY = 1, 2, 400, 500, 600

PTX = b"""
.version 8.0
.target sm_90
// fakegpu: code 3145728
.visible .global .align 4 .b8 table[1000];
.visible .entry k_1000000() { ret; }
.visible .entry deep(.param .u64 where)
{
    // fakegpu: cost 4000000
    .local .align 16 .b8 depot[16000];
    .local .align 4 .u32 more[96];
    ld.local.u32 %r1, [depot];
    ret;
}
.visible .entry plain() { ret; }
\0"""

Params = ParamSpec("Params")
Result = TypeVar("Result")


class Driver:
    """The driver in this process: `call` gives a function's result, `ok` insists on success."""

    def __init__(self, library: str) -> None:
        self._library = ctypes.CDLL(library)
        self.ok("cuInit", 0)
        self.context = c_void_p()

    @contextmanager
    def in_own_context(self) -> Iterator[None]:
        self.context = self.new("cuCtxCreate_v2", 0, 0)
        try:
            yield
        finally:
            self.ok("cuCtxDestroy_v2", self.context)

    def call(self, name: str, *arguments: object) -> int:
        return int(self._library[name](*arguments))

    def ok(self, name: str, *arguments: object) -> None:
        result = self.call(name, *arguments)
        assert result == 0, f"{name}: {result}"

    def new(self, name: str, *arguments: object) -> c_void_p:
        handle = c_void_p()
        self.ok(name, byref(handle), *arguments)
        return handle

    def advance(self, nanoseconds: int) -> None:
        self._library.fakegpu_advance(c_uint64(nanoseconds))

    def used(self) -> int:
        free, total = c_size_t(), c_size_t()
        self.ok("cuMemGetInfo_v2", byref(free), byref(total))
        return total.value - free.value

    def function(self, name: bytes, module: c_void_p | None = None) -> c_void_p:
        module = module or self.new("cuModuleLoadData", PTX)
        return self.new("cuModuleGetFunction", module, c_char_p(name))

    def launch(self, function: c_void_p, stream: c_void_p | None = None, suffix: str = "") -> int:
        sizes = (1, 1, 1, 32, 1, 1, 0)
        return self.call(f"cuLaunchKernel{suffix}", function, *sizes, stream, None, None)

    def event(self, stream: c_void_p | None = None) -> c_void_p:
        event = self.new("cuEventCreate", 0)
        self.ok("cuEventRecord", event, stream)
        return event

    def elapsed(self, start: c_void_p, end: c_void_p) -> float:
        milliseconds = c_float()
        self.ok("cuEventElapsedTime", byref(milliseconds), start, end)
        return milliseconds.value

    def graph_amount(self, attribute: int) -> int:
        value = c_uint64()
        self.ok("cuDeviceGetGraphMemAttribute", 0, attribute, byref(value))
        return value.value


class AllocNode(ctypes.Structure):
    """CUDA_MEM_ALLOC_NODE_PARAMS."""

    _fields_ = (
        ("type", c_int),
        ("handles", c_int),
        ("place", c_int),
        ("device", c_int),
        ("security", c_void_p),
        ("most", c_size_t),
        ("rest", ctypes.c_char * 56),
        ("access", c_void_p),
        ("access_count", c_size_t),
        ("size", c_size_t),
        ("pointer", c_uint64),
    )


class ArrayDescriptor(ctypes.Structure):
    """CUDA_ARRAY_DESCRIPTOR."""

    _fields_ = (("width", c_size_t), ("height", c_size_t), ("format", c_int), ("channels", c_uint))


class VolumeDescriptor(ctypes.Structure):
    """CUDA_ARRAY3D_DESCRIPTOR."""

    _fields_ = (
        ("width", c_size_t),
        ("height", c_size_t),
        ("depth", c_size_t),
        ("format", c_int),
        ("channels", c_uint),
        ("flags", c_uint),
    )


class Resource(ctypes.Structure):
    """CUdevResource, with the multiprocessors' part of its union."""

    _fields_ = (
        ("type", c_int),
        ("internal", ctypes.c_char * 92),
        ("sms", c_uint),
        ("rest", ctypes.c_char * 44),
    )


_process: list[Driver] = []


def _start(library: str, environment: dict[str, str]) -> None:
    os.environ.update(environment)
    _process.append(Driver(library))


def _leave(case: Callable[..., Any], *arguments: object, **named: object) -> Any:
    with _process[0].in_own_context():
        return case(_process[0], *arguments, **named)


def _run(case: Callable[..., Any], *arguments: object, **named: object) -> Any:
    try:
        return _leave(case, *arguments, **named)
    finally:
        _process[0].advance(LONG)  # what is left to do must not hold up the next case


class Process:
    """A process that has the cards of a node. Call it with a case."""

    def __init__(self, pool: ProcessPoolExecutor) -> None:
        self._pool = pool

    def __call__(
        self,
        case: Callable[Concatenate[Driver, Params], Result],
        *arguments: Params.args,
        **named: Params.kwargs,
    ) -> Result:
        return self.submit(case, *arguments, **named).result(PATIENCE)

    def submit(
        self,
        case: Callable[Concatenate[Driver, Params], Result],
        *arguments: Params.args,
        **named: Params.kwargs,
    ) -> Future[Result]:
        """Begin a case."""
        return self._pool.submit(_run, case, *arguments, **named)

    def leave(self, case: Callable[[Driver], None]) -> None:
        """Run a case whose work stays on the card."""
        self._pool.submit(_leave, case).result(PATIENCE)


def make_node(folder: Path) -> Path:
    """Make a node with one H200."""
    gpus.write_node(folder, [("H200", 1)], name="timeline")
    return folder


@contextmanager
def process(libraries: Path, folder: Path, **environment: str) -> Iterator[Process]:
    """Start a process on the node; its clock is virtual unless the environment says otherwise."""
    environment = {"FAKEGPU_DIR": str(folder), "FAKEGPU_CLOCK": "virtual", **environment}
    with ProcessPoolExecutor(
        max_workers=1,
        mp_context=multiprocessing.get_context("spawn"),
        initializer=_start,
        initargs=(str(libraries / "fakegpu/libcuda.so.1"), environment),
    ) as pool:
        yield Process(pool)
