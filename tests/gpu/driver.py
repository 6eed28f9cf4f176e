"""The CUDA driver and NVML through ctypes: what the jobs of tests/gpu call.

ctypes looks names up with dlsym, so a preloaded libvgpu.so stands in front exactly as it does for
any program that loads the driver at run time. Nothing beyond the standard library is needed.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from typing import Any

MIB = 1 << 20
OUT_OF_MEMORY = 2
STACK_SIZE, HEAP_SIZE = 0, 2  # limits of a context
RESERVED_MEM_CURRENT, RELEASE_THRESHOLD = 5, 4  # attributes of a pool
GRAPH_RESERVED_CURRENT = 2
LOCAL_SIZE_BYTES = 3
FILE_DESCRIPTOR = 1  # a handle type
PINNED, MANAGED = 1, 2  # types of memory
ON_DEVICE = 1  # a type of location
SM_RESOURCE = 1
GREEN_DEFAULT_STREAM = 1
UINT8, FLOAT = 0x01, 0x20  # formats of array elements


class CudaError(Exception):
    def __init__(self, code: int, function: str) -> None:
        super().__init__(f"{function} returned {code}")
        self.code = code
        self.function = function


class Location(ctypes.Structure):
    _fields_ = (("type", ctypes.c_int), ("id", ctypes.c_int))


class AllocationProperties(ctypes.Structure):
    _fields_ = (
        ("type", ctypes.c_int),
        ("handle_types", ctypes.c_int),
        ("location", Location),
        ("win32", ctypes.c_void_p),
        ("flags", ctypes.c_ubyte * 8),
    )


class AccessDescription(ctypes.Structure):
    _fields_ = (("location", Location), ("flags", ctypes.c_int))


class PoolProperties(ctypes.Structure):
    _fields_ = (
        ("type", ctypes.c_int),
        ("handle_types", ctypes.c_int),
        ("location", Location),
        ("win32", ctypes.c_void_p),
        ("max_size", ctypes.c_size_t),
        ("usage", ctypes.c_ushort),
        ("reserved", ctypes.c_ubyte * 54),
    )


class ArrayDescription(ctypes.Structure):
    _fields_ = (
        ("width", ctypes.c_size_t),
        ("height", ctypes.c_size_t),
        ("depth", ctypes.c_size_t),
        ("format", ctypes.c_int),
        ("channels", ctypes.c_uint),
        ("flags", ctypes.c_uint),
    )


class GraphAllocation(ctypes.Structure):
    _fields_ = (
        ("pool", PoolProperties),
        ("access", ctypes.c_void_p),
        ("access_count", ctypes.c_size_t),
        ("size", ctypes.c_size_t),
        ("pointer", ctypes.c_uint64),
    )


class DeviceResource(ctypes.Structure):
    """CUdevResource: its type, and what the driver keeps in it."""

    _fields_ = (("type", ctypes.c_int), ("internal", ctypes.c_ubyte * 140))


class MulticastProperties(ctypes.Structure):
    _fields_ = (
        ("devices", ctypes.c_uint),
        ("size", ctypes.c_size_t),
        ("handle_types", ctypes.c_ulonglong),
        ("flags", ctypes.c_ulonglong),
    )


class IpcHandle(ctypes.Structure):
    _fields_ = (("bytes", ctypes.c_char * 64),)


class Cuda:
    """One device of the driver. Failed calls raise CudaError with the driver's code."""

    def __init__(self) -> None:
        self.library = ctypes.CDLL("libcuda.so.1")
        self._device: ctypes.c_int | None = None

    def call(self, function: str, *arguments: Any) -> None:
        code = self.library[function](*arguments)
        if code:
            raise CudaError(code, function)

    def address(self, function: str) -> int:
        """Return where calls of this name go."""
        return ctypes.cast(self.library[function], ctypes.c_void_p).value or 0

    def handle(self, function: str, *arguments: Any) -> ctypes.c_void_p:
        """Call a function whose first parameter is where the new handle goes."""
        made = ctypes.c_void_p()
        self.call(function, ctypes.byref(made), *arguments)
        return made

    @property
    def device(self) -> ctypes.c_int:
        if self._device is None:
            self._device = ctypes.c_int()
            self.call("cuDeviceGet", ctypes.byref(self._device), 0)
        return self._device

    def start(self) -> ctypes.c_void_p:
        """Initialise, and make the primary context current."""
        self.call("cuInit", 0)
        context = self.handle("cuDevicePrimaryCtxRetain", self.device)
        self.call("cuCtxSetCurrent", context)
        return context

    def green(self) -> ctypes.c_void_p:
        """Make a green context with all multiprocessors; the driver makes the primary one."""
        resource = DeviceResource()
        place = ctypes.byref(resource)
        self.call("cuDeviceGetDevResource", self.device, place, SM_RESOURCE)
        description = self.handle("cuDevResourceGenerateDesc", place, 1)
        return self.handle("cuGreenCtxCreate", description, self.device, GREEN_DEFAULT_STREAM)

    def synchronise(self) -> None:
        self.call("cuCtxSynchronize")

    def info(self) -> tuple[int, int]:
        """Return free and total bytes as cuMemGetInfo tells."""
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        self.call("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
        return free.value, total.value

    def total(self) -> int:
        total = ctypes.c_size_t()
        self.call("cuDeviceTotalMem_v2", ctypes.byref(total), self.device)
        return total.value

    # linear memory

    def alloc(self, size: int) -> int:
        pointer = ctypes.c_uint64()
        self.call("cuMemAlloc_v2", ctypes.byref(pointer), ctypes.c_size_t(size))
        return pointer.value

    def pitch(self, width: int, height: int) -> int:
        pointer, pitch = ctypes.c_uint64(), ctypes.c_size_t()
        size = (ctypes.c_size_t(width), ctypes.c_size_t(height))
        self.call("cuMemAllocPitch_v2", ctypes.byref(pointer), ctypes.byref(pitch), *size, 16)
        return pointer.value

    def managed(self, size: int) -> int:
        pointer = ctypes.c_uint64()
        self.call("cuMemAllocManaged", ctypes.byref(pointer), ctypes.c_size_t(size), 1)
        return pointer.value

    def prefetch(self, pointer: int, size: int) -> None:
        """Bring managed memory to the card, by the newer of the two functions."""
        there = Location(ON_DEVICE, self.device.value)
        where = (ctypes.c_uint64(pointer), ctypes.c_size_t(size))
        self.call("cuMemPrefetchAsync_v2", *where, there, 0, None)
        self.synchronise()

    def free(self, pointer: int) -> None:
        self.call("cuMemFree_v2", ctypes.c_uint64(pointer))

    def fill(self, pointer: int, size: int, byte: int = 1) -> None:
        self.call(
            "cuMemsetD8_v2", ctypes.c_uint64(pointer), ctypes.c_ubyte(byte), ctypes.c_size_t(size)
        )
        self.synchronise()

    def read(self, pointer: int, size: int) -> bytes:
        data = ctypes.create_string_buffer(size)
        self.call("cuMemcpyDtoH_v2", data, ctypes.c_uint64(pointer), ctypes.c_size_t(size))
        return data.raw

    # stream-ordered memory

    def stream(self) -> ctypes.c_void_p:
        return self.handle("cuStreamCreate", 1)

    def alloc_async(self, size: int, stream: ctypes.c_void_p | None = None) -> int:
        pointer = ctypes.c_uint64()
        self.call("cuMemAllocAsync", ctypes.byref(pointer), ctypes.c_size_t(size), stream)
        return pointer.value

    def alloc_from(self, pool: ctypes.c_void_p, size: int) -> int:
        pointer = ctypes.c_uint64()
        self.call(
            "cuMemAllocFromPoolAsync", ctypes.byref(pointer), ctypes.c_size_t(size), pool, None
        )
        return pointer.value

    def free_async(self, pointer: int, stream: ctypes.c_void_p | None = None) -> None:
        self.call("cuMemFreeAsync", ctypes.c_uint64(pointer), stream)

    def default_pool(self) -> ctypes.c_void_p:
        return self.handle("cuDeviceGetDefaultMemPool", self.device)

    def make_pool(self, type_: int = PINNED) -> ctypes.c_void_p:
        properties = PoolProperties(type=type_, location=Location(ON_DEVICE, self.device.value))
        return self.handle("cuMemPoolCreate", ctypes.byref(properties))

    def keep_all(self, pool: ctypes.c_void_p) -> None:
        """Let the pool give nothing back by itself."""
        threshold = ctypes.c_uint64(2**64 - 1)
        self.call("cuMemPoolSetAttribute", pool, RELEASE_THRESHOLD, ctypes.byref(threshold))

    def pool_reserved(self, pool: ctypes.c_void_p) -> int:
        value = ctypes.c_uint64()
        self.call("cuMemPoolGetAttribute", pool, RESERVED_MEM_CURRENT, ctypes.byref(value))
        return value.value

    # virtual memory management

    def _properties(self, *, shareable: bool) -> AllocationProperties:
        return AllocationProperties(
            type=1,
            handle_types=FILE_DESCRIPTOR if shareable else 0,
            location=Location(1, self.device.value),
        )

    def create(self, size: int, *, shareable: bool = False) -> int:
        handle = ctypes.c_uint64()
        properties = self._properties(shareable=shareable)
        self.call(
            "cuMemCreate",
            ctypes.byref(handle),
            ctypes.c_size_t(size),
            ctypes.byref(properties),
            ctypes.c_uint64(0),
        )
        return handle.value

    def release(self, handle: int) -> None:
        self.call("cuMemRelease", ctypes.c_uint64(handle))

    def reserve(self, size: int) -> int:
        pointer = ctypes.c_uint64()
        zero = ctypes.c_uint64(0)
        size_t = ctypes.c_size_t(size)
        self.call("cuMemAddressReserve", ctypes.byref(pointer), size_t, zero, zero, zero)
        return pointer.value

    def map(self, handle: int, address: int, size: int) -> None:
        zero = ctypes.c_uint64(0)
        where = (ctypes.c_uint64(address), ctypes.c_size_t(size))
        self.call("cuMemMap", *where, zero, ctypes.c_uint64(handle), zero)
        access = AccessDescription(Location(1, self.device.value), 3)
        self.call("cuMemSetAccess", *where, ctypes.byref(access), ctypes.c_size_t(1))

    def unmap(self, address: int, size: int) -> None:
        self.call("cuMemUnmap", ctypes.c_uint64(address), ctypes.c_size_t(size))

    def export(self, handle: int) -> int:
        """Return a file descriptor that stands for the memory."""
        descriptor = ctypes.c_int()
        made = ctypes.c_uint64(handle)
        self.call(
            "cuMemExportToShareableHandle",
            ctypes.byref(descriptor),
            made,
            FILE_DESCRIPTOR,
            ctypes.c_uint64(0),
        )
        return descriptor.value

    def import_(self, descriptor: int) -> int:
        handle = ctypes.c_uint64()
        self.call(
            "cuMemImportFromShareableHandle",
            ctypes.byref(handle),
            ctypes.c_void_p(descriptor),
            FILE_DESCRIPTOR,
        )
        return handle.value

    # memory of other processes

    def ipc_handle(self, pointer: int) -> bytes:
        handle = IpcHandle()
        self.call("cuIpcGetMemHandle", ctypes.byref(handle), ctypes.c_uint64(pointer))
        return bytes(handle)

    def ipc_open(self, handle: bytes) -> int:
        pointer = ctypes.c_uint64()
        self.call(
            "cuIpcOpenMemHandle_v2", ctypes.byref(pointer), IpcHandle.from_buffer_copy(handle), 1
        )
        return pointer.value

    # arrays

    def array(self, width: int, height: int, depth: int = 0) -> ctypes.c_void_p:
        """Make an array of four floats per element."""
        description = ArrayDescription(width, height, depth, FLOAT, 4, 0)
        return self.handle("cuArray3DCreate_v2", ctypes.byref(description))

    def mipmap(self, width: int, height: int, levels: int) -> ctypes.c_void_p:
        description = ArrayDescription(width, height, 0, FLOAT, 4, 0)
        return self.handle("cuMipmappedArrayCreate", ctypes.byref(description), levels)

    # graphs

    def graph(self, sizes: list[int], *, freed: bool) -> tuple[ctypes.c_void_p, list[int]]:
        """Build a graph that allocates each size and, if asked, frees all at its end."""
        graph = self.handle("cuGraphCreate", 0)
        last = ctypes.c_void_p()
        pointers: list[int] = []
        for size in sizes:
            params = GraphAllocation(size=size)
            params.pool.type = 1
            params.pool.location = Location(1, self.device.value)
            count = ctypes.c_size_t(1 if pointers else 0)
            before = (ctypes.byref(last) if pointers else None, count)
            last = self.handle("cuGraphAddMemAllocNode", graph, *before, ctypes.byref(params))
            pointers.append(params.pointer)
        for pointer in pointers if freed else []:
            before = (ctypes.byref(last), ctypes.c_size_t(1))
            last = self.handle("cuGraphAddMemFreeNode", graph, *before, ctypes.c_uint64(pointer))
        return graph, pointers

    def instantiate(self, graph: ctypes.c_void_p) -> ctypes.c_void_p:
        return self.handle("cuGraphInstantiateWithFlags", graph, ctypes.c_uint64(0))

    def launch_graph(self, executable: ctypes.c_void_p) -> None:
        self.call("cuGraphLaunch", executable, None)
        self.synchronise()

    def graph_reserved(self) -> int:
        value = ctypes.c_uint64()
        self.call(
            "cuDeviceGetGraphMemAttribute",
            self.device,
            GRAPH_RESERVED_CURRENT,
            ctypes.byref(value),
        )
        return value.value

    # kernels and limits

    def function(self, image: bytes, name: bytes) -> ctypes.c_void_p:
        module = self.handle("cuModuleLoadData", ctypes.c_char_p(image))
        return self.handle("cuModuleGetFunction", module, ctypes.c_char_p(name))

    def launch(self, function: ctypes.c_void_p, *parameters: Any) -> None:
        """Run one warp of a kernel and wait for it."""
        places = (ctypes.c_void_p * max(1, len(parameters)))()
        for index, parameter in enumerate(parameters):
            places[index] = ctypes.addressof(parameter)
        self.call("cuLaunchKernel", function, 1, 1, 1, 32, 1, 1, 0, None, places, None)
        self.synchronise()

    def set_limit(self, limit: int, value: int) -> None:
        self.call("cuCtxSetLimit", limit, ctypes.c_size_t(value))

    def get_limit(self, limit: int) -> int:
        value = ctypes.c_size_t()
        self.call("cuCtxGetLimit", ctypes.byref(value), limit)
        return value.value


class Memory(ctypes.Structure):
    _fields_ = (
        ("total", ctypes.c_ulonglong),
        ("free", ctypes.c_ulonglong),
        ("used", ctypes.c_ulonglong),
    )


class ProcessInfo(ctypes.Structure):
    _fields_ = (
        ("pid", ctypes.c_uint),
        ("used", ctypes.c_ulonglong),
        ("instance", ctypes.c_uint),
        ("compute_instance", ctypes.c_uint),
    )


class Nvml:
    """NVML's view of the card with index 0."""

    def __init__(self) -> None:
        self.library = ctypes.CDLL("libnvidia-ml.so.1")
        self._call("nvmlInit_v2")
        self._card = ctypes.c_void_p()
        self._call("nvmlDeviceGetHandleByIndex_v2", 0, ctypes.byref(self._card))
        self._infos = (ProcessInfo * 512)()

    def _call(self, function: str, *arguments: Any) -> None:
        code = self.library[function](*arguments)
        if code:
            raise OSError(code, f"{function} returned {code}")

    def processes(self) -> dict[int, int]:
        """Return the bytes of each process that has a context on the card."""
        count = ctypes.c_uint(len(self._infos))
        self._call(
            "nvmlDeviceGetComputeRunningProcesses_v3",
            self._card,
            ctypes.byref(count),
            self._infos,
        )
        return {info.pid: info.used for info in self._infos[: count.value]}

    def own(self) -> int:
        return self.processes().get(os.getpid(), 0)

    def memory(self) -> tuple[int, int, int]:
        """Return total, free and used bytes of the card."""
        memory = Memory()
        self._call("nvmlDeviceGetMemoryInfo", self._card, ctypes.byref(memory))
        return memory.total, memory.free, memory.used

    def _text(self, function: str, *arguments: Any) -> str:
        text = ctypes.create_string_buffer(128)
        self._call(function, *arguments, text, 128)
        return text.value.decode()

    def uuid(self) -> str:
        return self._text("nvmlDeviceGetUUID", self._card)

    def name(self) -> str:
        return self._text("nvmlDeviceGetName", self._card)

    def driver(self) -> str:
        return self._text("nvmlSystemGetDriverVersion")


def refused(action: Callable[[], object]) -> int:
    """Return the driver's code for the action, 0 where it succeeds."""
    try:
        action()
    except CudaError as error:
        return error.code
    return 0
