"""A worker process: the questions of workers.Worker, answered on the GPU.

Every public method of Work and of Cuda is a question. Handles travel as numbers.
"""

from __future__ import annotations

import ctypes
import json
import mmap
import os
import random
import socket
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.gpu import kernels
from tests.gpu.doors import Doors
from tests.gpu.driver import (
    LOCAL_SIZE_BYTES,
    MANAGED,
    MIB,
    OUT_OF_MEMORY,
    Cuda,
    CudaError,
    Nvml,
    refused,
)
from tests.gpu.timing import Loops


class Work:
    def __init__(self, descriptors: socket.socket) -> None:
        self.descriptors = descriptors
        self.cuda = Cuda()
        self.undo: list[Callable[[], None]] = []
        self.functions: dict[str, ctypes.c_void_p] = {}
        self.scratch = 0
        self._nvml: Nvml | None = None

    # starting

    def init(self) -> float:
        """Return the milliseconds of cuInit."""
        start = time.perf_counter()
        self.cuda.call("cuInit", 0)
        return (time.perf_counter() - start) * 1e3

    def refused_init(self) -> float:
        """Call cuInit with flags that do not exist; return its milliseconds."""
        start = time.perf_counter()
        code = refused(lambda: self.cuda.call("cuInit", 1))
        elapsed = (time.perf_counter() - start) * 1e3
        if code == 0:
            raise ValueError("cuInit(1) was accepted: it cannot tell libvgpu's own part")
        return elapsed

    def start(self) -> float:
        """Make the primary context; return its milliseconds."""
        self.init()
        start = time.perf_counter()
        self.cuda.start()
        return (time.perf_counter() - start) * 1e3

    def start_green(self) -> None:
        """Make a green context before any other one, and use it."""
        self.init()
        green = self.cuda.green()
        self.cuda.call("cuCtxSetCurrent", self.cuda.handle("cuCtxFromGreenCtx", green))

    def door(self, name: str) -> int:
        """Try one way to the card; return the driver's code."""
        return refused(getattr(Doors(self.cuda), name))

    def second_context(self) -> int:
        context = self.cuda.handle("cuCtxCreate_v2", 0, self.cuda.device)
        self.undo.append(lambda: self.cuda.call("cuCtxDestroy_v2", context))
        return context.value or 0

    def nvml(self) -> Nvml:
        if self._nvml is None:
            self._nvml = Nvml()
        return self._nvml

    def nvml_view(self) -> dict[str, Any]:
        total, free, used = self.nvml().memory()
        return {"total": total, "free": free, "used": used, "processes": self.nvml().processes()}

    # filling: one unit of each way to get memory; what is made is kept in `undo`

    def _kept(self, undo: Callable[[], None]) -> None:
        self.undo.append(undo)

    def _linear(self, size: int) -> None:
        pointer = self.cuda.alloc(size)
        self._kept(lambda: self.cuda.free(pointer))

    def _pitch(self, size: int) -> None:
        """Rows of 10,000 bytes: the driver's pitch makes more of them."""
        pointer = self.cuda.pitch(10_000, max(1, size // 10_000))
        self._kept(lambda: self.cuda.free(pointer))

    def _managed(self, size: int) -> None:
        pointer = self.cuda.managed(size)
        self._kept(lambda: self.cuda.free(pointer))
        self.cuda.fill(pointer, size)

    def _managed_prefetched(self, size: int) -> None:
        pointer = self.cuda.managed(size)
        self._kept(lambda: self.cuda.free(pointer))
        self.cuda.prefetch(pointer, size)

    def _managed_pool(self, size: int) -> None:
        if "managed pool" not in self.functions:
            self.functions["managed pool"] = self.cuda.make_pool(MANAGED)
        pointer = self.cuda.alloc_from(self.functions["managed pool"], size)
        self._kept(lambda: self.cuda.free_async(pointer))
        self.cuda.fill(pointer, size)

    def _async(self, size: int) -> None:
        pointer = self.cuda.alloc_async(size)
        self._kept(lambda: self.cuda.free_async(pointer))

    def _pool(self, size: int) -> None:
        if "pool" not in self.functions:
            self.functions["pool"] = self.cuda.make_pool()
        pointer = self.cuda.alloc_from(self.functions["pool"], size)
        self._kept(lambda: self.cuda.free_async(pointer))

    def _vmm(self, size: int) -> None:
        handle = self.cuda.create(size)
        self._kept(lambda: self.cuda.release(handle))

    def _vmm_mapped(self, size: int) -> None:
        """Create, map, release: the mapping alone keeps the memory."""
        handle = self.cuda.create(size)
        address = self.cuda.reserve(size)
        self.cuda.map(handle, address, size)
        self.cuda.release(handle)
        self._kept(lambda: self.cuda.unmap(address, size))

    def _array2d(self, size: int) -> None:
        width = 1024
        array = self.cuda.array(width, max(1, size // (width * 16)))
        self._kept(lambda: self.cuda.call("cuArrayDestroy", array))

    def _array3d(self, size: int) -> None:
        side = max(1, round((size / 16) ** (1 / 3)))
        array = self.cuda.array(side, side, side)
        self._kept(lambda: self.cuda.call("cuArrayDestroy", array))

    def _mipmap(self, size: int) -> None:
        side = max(1, round((size / 16 * 3 / 4) ** 0.5))
        mipmap = self.cuda.mipmap(side, side, side.bit_length())
        self._kept(lambda: self.cuda.call("cuMipmappedArrayDestroy", mipmap))

    def _graph(self, size: int) -> None:
        """Make a graph that allocates and does not free: its memory stays after the launch."""
        graph, pointers = self.cuda.graph([size], freed=False)
        executable = self.cuda.instantiate(graph)
        self._kept(lambda: self.cuda.call("cuGraphExecDestroy", executable))
        self.cuda.launch_graph(executable)
        self._kept(lambda: self.cuda.free(pointers[0]))

    def _stream(self, size: int) -> None:
        stream = self.cuda.stream()
        self._kept(lambda: self.cuda.call("cuStreamDestroy_v2", stream))

    def _context(self, size: int) -> None:
        self.second_context()

    def fill(self, api: str, size: int, most: int = 2**62, count: int = 10**6) -> dict[str, int]:
        """Ask for `size` bytes until refused, or until `most` bytes or `count` pieces are had."""
        one: Callable[[int], None] = getattr(self, f"_{api}")
        made = 0
        code = 0
        while made < count and (made + 1) * size <= most:
            try:
                one(size)
            except CudaError as error:
                code = error.code
                break
            made += 1
        return {"count": made, "bytes": made * size, "code": code}

    def empty(self) -> None:
        """Give back everything that was filled."""
        while self.undo:
            self.undo.pop()()
        self.cuda.synchronise()

    def undo_last(self) -> None:
        self.undo.pop()()

    def ready(self) -> int:
        return os.getpid()

    def mix(self, seed: int, turns: int, most: int) -> dict[str, int]:
        """Allocate 256 B to 32 MiB and free at random; return the last refusal's code."""
        rng = random.Random(seed)
        live: list[tuple[int, int]] = []
        held = peak = 0
        code = 0
        for _ in range(turns):
            size = int(256 * 2 ** rng.uniform(0, 17))
            if held + size > most or (live and rng.random() < 0.25):
                pointer, freed = live.pop(rng.randrange(len(live)))
                self.cuda.free(pointer)
                held -= freed
                continue
            try:
                live.append((self.cuda.alloc(size), size))
            except CudaError as error:
                code = error.code
                if code != OUT_OF_MEMORY:
                    break
                for _ in range(min(8, len(live))):
                    pointer, freed = live.pop(rng.randrange(len(live)))
                    self.cuda.free(pointer)
                    held -= freed
                continue
            held += size
            peak = max(peak, held)
        for pointer, _size in live:
            self.cuda.free(pointer)
        return {"count": turns, "bytes": peak, "code": code}

    def churn(self, seed: int, most: int) -> None:
        """Make a context, say so, and hold up to `most` bytes in ever other pieces until killed."""
        while True:
            try:
                self.start()
                break
            except CudaError as error:
                if error.code != OUT_OF_MEMORY:
                    raise
                time.sleep(0.005)
        self.descriptors.send(b"c")
        rng = random.Random(seed)
        live: list[tuple[int, int]] = []
        held = 0
        while True:
            size = int(4096 * 2 ** rng.uniform(0, 14))
            try:
                live.append((self.cuda.alloc(size), size))
                held += size
            except CudaError as error:
                if error.code != OUT_OF_MEMORY:
                    raise
            while live and (held > most or rng.random() < 0.3):
                pointer, freed = live.pop(rng.randrange(len(live)))
                self.cuda.free(pointer)
                held -= freed

    def rotate(self, path: str, place: int, count: int, size: int, seconds: float) -> int:
        """Take `size` bytes and give them back when it is this process's turn of `count`.

        The turn is a number in a shared file, so that the next one follows within microseconds.
        """
        with Path(path).open("r+b") as file:
            turn = memoryview(mmap.mmap(file.fileno(), 8)).cast("Q")
        end = time.monotonic() + seconds
        turns = 0
        while time.monotonic() < end:
            if turn[0] % count == place:
                self.cuda.free(self.cuda.alloc(size))
                turns += 1
                turn[0] += 1
        return turns

    def fill_within(self, size: int, wanted: int, seconds: float) -> dict[str, float]:
        """Try for `wanted` bytes until they are had; return the seconds it took, or -1."""
        start = time.perf_counter()
        have = 0
        while time.perf_counter() - start < seconds:
            have += self.fill("linear", size, most=wanted - have)["bytes"]
            if have >= wanted:
                return {"seconds": time.perf_counter() - start, "bytes": have}
            time.sleep(0.002)
        return {"seconds": -1.0, "bytes": have}

    # kernels

    def load(self, name: str, maker: str, *arguments: int) -> int:
        """Load a kernel of kernels.py; return its local bytes."""
        kernel = {
            "empty": ("nothing", kernels.empty),
            "local": ("locals", kernels.local_memory),
            "static": ("user", kernels.static_memory),
            "many": ("step0", kernels.many_kernels),
        }[maker]
        image: bytes = kernel[1](*arguments)  # type: ignore[operator]
        self.functions[name] = self.cuda.function(image, kernel[0].encode())
        return self.local_size(name)

    def local_size(self, name: str) -> int:
        value = ctypes.c_int()
        function = self.functions[name]
        self.cuda.call("cuFuncGetAttribute", ctypes.byref(value), LOCAL_SIZE_BYTES, function)
        return value.value

    def run(self, name: str) -> None:
        """Launch a loaded kernel; those of kernels.py take at most an address and two indexes."""
        self.scratch = self.scratch or self.cuda.alloc(MIB)
        place = ctypes.c_uint64(self.scratch)
        self.cuda.launch(self.functions[name], place, ctypes.c_uint32(3), ctypes.c_uint32(5))

    def prepare_scratch(self) -> None:
        self.scratch = self.cuda.alloc(MIB)

    def library(self, count: int, length: int) -> list[int]:
        """Load a library of many kernels; keep library and first kernel for later questions."""
        image = kernels.many_kernels(count, length)
        none = (None, None, 0)
        made = self.cuda.handle("cuLibraryLoadData", ctypes.c_char_p(image), *none, *none)
        self.functions["library"] = made
        self.functions["kernel"] = self.cuda.handle("cuLibraryGetKernel", made, b"step0")
        return [made.value or 0]

    def kernel_attribute(self) -> int:
        value = ctypes.c_int()
        kernel = self.functions["kernel"]
        place = ctypes.byref(value)
        self.cuda.call("cuKernelGetAttribute", place, LOCAL_SIZE_BYTES, kernel, self.cuda.device)
        return value.value

    def kernel_function(self) -> None:
        function = self.cuda.handle("cuKernelGetFunction", self.functions["kernel"])
        self.functions["many"] = function

    # graphs

    def instantiate_graph(self, sizes: list[int], *, freed: bool) -> int:
        return self.cuda.instantiate(self.cuda.graph(sizes, freed=freed)[0]).value or 0

    def launch_made(self, executable: int) -> None:
        self.cuda.launch_graph(ctypes.c_void_p(executable))

    def destroy_made(self, executable: int) -> None:
        self.cuda.call("cuGraphExecDestroy", ctypes.c_void_p(executable))

    def trim(self) -> None:
        self.cuda.synchronise()
        self.cuda.call("cuDeviceGraphMemTrim", self.cuda.device)

    # sharing

    def share_vmm(self, size: int) -> int:
        handle = self.cuda.create(size, shareable=True)
        descriptor = self.cuda.export(handle)
        socket.send_fds(self.descriptors, [b"f"], [descriptor])
        os.close(descriptor)
        return self._mapped(handle, size)

    def take_vmm(self, size: int) -> int:
        descriptor = socket.recv_fds(self.descriptors, 1, 1)[1][0]
        handle = self.cuda.import_(descriptor)
        os.close(descriptor)
        return self._mapped(handle, size)

    def _mapped(self, handle: int, size: int) -> int:
        address = self.cuda.reserve(size)
        self.cuda.map(handle, address, size)

        def undo() -> None:
            self.cuda.unmap(address, size)
            self.cuda.release(handle)

        self._kept(undo)
        return address

    def share_ipc(self, size: int) -> list[Any]:
        pointer = self.cuda.alloc(size)
        self._kept(lambda: self.cuda.free(pointer))
        return [pointer, self.cuda.ipc_handle(pointer).hex()]

    def take_ipc(self, handle: str) -> int:
        pointer = self.cuda.ipc_open(bytes.fromhex(handle))
        self._kept(lambda: self.cuda.call("cuIpcCloseMemHandle", ctypes.c_uint64(pointer)))
        return pointer

    def fill_bytes(self, pointer: int, size: int, byte: int) -> None:
        self.cuda.fill(pointer, size, byte)

    def first_byte(self, pointer: int) -> int:
        return self.cuda.read(pointer, 1)[0]

    # times

    def times(self, library: str, loop: str, *arguments: Any) -> float:
        """Run one loop of timing.Loops; return ns per turn."""
        loops = Loops(Path(library), self.cuda)
        return float(getattr(loops, loop)(*arguments))

    def pool_times(self, library: str, size: int, turns: int) -> dict[str, float]:
        """Time allocation and free in the default pool that keeps everything."""
        loops = Loops(Path(library), self.cuda)
        pool = self.cuda.default_pool()
        self.cuda.keep_all(pool)
        loops.async_pair(size, 1000)
        return {
            "pair": loops.async_pair(size, turns),
            "attribute": loops.pool_attribute(pool, 5, turns),
        }

    def live_times(self, library: str, size: int, counts: list[int]) -> dict[str, float]:
        """Time cuMemAlloc + cuMemFree of `size` bytes with ever more allocations alive."""
        loops = Loops(Path(library), self.cuda)
        pointers = (ctypes.c_uint64 * max(counts))()
        live = 0
        found = {}
        for count in counts:
            if count > live:
                more = (ctypes.c_uint64 * (count - live)).from_buffer(pointers, live * 8)
                loops.alloc(size, more, count - live)
                live = count
            found[str(count)] = min(loops.alloc_free(size, 2000) for _ in range(5))
        if live:
            loops.free(pointers, live)
        return found

    def launch_times(self, library: str, turns: int) -> list[float]:
        """Time launches of an empty kernel, several times over."""
        loops = Loops(Path(library), self.cuda)
        self.load("empty", "empty")
        found = []
        for _ in range(7):
            found.append(loops.launch(self.functions["empty"], turns))
            self.cuda.synchronise()
        return found

    # where names lead

    def addresses(self, names: list[str]) -> dict[str, list[str]]:
        """Return, per name, which file and offset dlsym and cuGetProcAddress lead to."""
        found: dict[str, list[str]] = {}
        for name in names:
            places = [place_of(self.cuda.address(name))]
            for flags in (1, 2):
                pointer = ctypes.c_void_p()
                status = ctypes.c_int()
                self.cuda.library.cuGetProcAddress_v2(
                    name.encode(),
                    ctypes.byref(pointer),
                    13000,
                    ctypes.c_uint64(flags),
                    ctypes.byref(status),
                )
                places.append(place_of(pointer.value or 0))
            found[name] = places
        return found


def place_of(address: int) -> str:
    """Return file name and offset of an address of this process."""
    first: dict[str, int] = {}
    for line in Path("/proc/self/maps").read_text().splitlines():
        fields = line.split(maxsplit=5)
        start, end = (int(text, 16) for text in fields[0].split("-"))
        path = fields[5] if len(fields) > 5 else ""
        first.setdefault(path, start)
        if start <= address < end:
            return f"{Path(path).name}+{address - first[path]:#x}"
    return f"nowhere {address:#x}"


def plain(value: Any) -> Any:
    return value.value if isinstance(value, ctypes._SimpleCData) else value


def answer(subject: Any, question: dict[str, Any]) -> dict[str, Any]:
    try:
        name = question["do"]
        method = getattr(subject, name, None) or getattr(subject.cuda, name)
        return {"ok": plain(method(*question["args"], **question["named"]))}
    except CudaError as error:
        return {"code": error.code, "function": error.function}
    except Exception:  # noqa: BLE001  the runner wants to hear of it, whatever it is
        return {"error": traceback.format_exc()[-600:]}


def serve(subject: Any) -> None:
    """Answer the runner's questions until it closes the pipe."""
    for line in sys.stdin:
        reply = answer(subject, json.loads(line))
        sys.stdout.write(json.dumps(reply) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    serve(Work(socket.socket(fileno=int(sys.argv[1]))))
