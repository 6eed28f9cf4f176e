"""A program that looks for the driver's functions past libvgpu.

    python past_the_library.py address|dlmopen|dlvsym|deepbind BYTES

By `address` it first uses CUDA as any program does, so it has a process entry. Then it takes memory
by a function whose address it has read from the driver's ELF file, as a program would that talks to
/dev/nvidia* by itself. The others are doors of the dynamic linker. It prints the driver's results
and stays until its input ends.
"""

from __future__ import annotations

import ctypes
import os
import struct
import sys
from collections.abc import Callable
from pathlib import Path

_DYNSYM = 11
_DRIVER = b"libcuda.so.1"
_RTLD_DEEPBIND = 8
_NEW_NAMESPACE = -1

Lookup = Callable[[str], Callable[..., int]]


def symbols(data: bytes) -> dict[bytes, int]:
    """Return the addresses of a library's functions, relative to where it is loaded."""
    header = struct.unpack_from("<16sHHIQQQIHHHHHH", data)
    sections = [
        struct.unpack_from("<IIQQQQIIQQ", data, header[6] + index * header[11])
        for index in range(header[12])
    ]
    [table] = [section for section in sections if section[1] == _DYNSYM]
    names = sections[table[6]][4]
    found = {}
    for at in range(table[4], table[4] + table[5], 24):
        name, _, _, _, value, _ = struct.unpack_from("<IBBHQQ", data, at)
        found[data[names + name : data.index(b"\0", names + name)]] = value
    return found


def by_address(name: str) -> Callable[..., int]:
    maps = Path("/proc/self/maps").read_text().splitlines()
    first = next(line for line in maps if line.endswith(_DRIVER.decode()))
    base, path = int(first.partition("-")[0], 16), first.split()[-1]
    return _function(base + symbols(Path(path).read_bytes())[name.encode()])


def by_the_linker(how: str) -> Lookup:
    linker = ctypes.CDLL(None)
    for function in (linker.dlmopen, linker.dlopen, linker.dlsym, linker.dlvsym):
        function.restype = ctypes.c_void_p
    if how == "dlmopen":
        linker.dlmopen.argtypes = [ctypes.c_long, ctypes.c_char_p, ctypes.c_int]
        handle = linker.dlmopen(_NEW_NAMESPACE, _DRIVER, os.RTLD_NOW)
    else:
        flags = os.RTLD_NOW | (_RTLD_DEEPBIND if how == "deepbind" else 0)
        handle = linker.dlopen(_DRIVER, flags)
    assert handle

    def look_up(name: str) -> Callable[..., int]:
        asked = ctypes.c_void_p(handle), name.encode()
        found = linker.dlvsym(*asked, b"CUDA_1") if how == "dlvsym" else None
        return _function(found or linker.dlsym(*asked))

    return look_up


def _function(address: int) -> Callable[..., int]:
    return ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t)(address)


def main(how: str, size: int) -> None:
    usual = ctypes.CDLL(_DRIVER.decode())
    ordinary: Lookup = lambda name: getattr(usual, name)  # noqa: E731 - as the others
    first = ordinary if how == "address" else by_the_linker(how)
    take = (by_address if how == "address" else first)("cuMemAlloc_v2")
    context, pointer = ctypes.c_void_p(), ctypes.c_uint64()
    results = [
        first("cuInit")(None, 0) if how != "address" else usual.cuInit(0),
        first("cuDevicePrimaryCtxRetain")(ctypes.byref(context), 0),
        first("cuCtxSetCurrent")(context, 0),
        take(ctypes.byref(pointer), size),
    ]
    print("ok", *results, flush=True)  # noqa: T201 - the test reads it
    sys.stdin.read()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
