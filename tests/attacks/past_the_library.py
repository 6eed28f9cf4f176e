"""A program that calls the driver past libvgpu: by addresses out of its ELF file.

    python past_the_library.py BYTES

It first uses CUDA as any program does, so it has a process entry. Then it takes memory by functions
that no lookup has given it, as a program would that talks to /dev/nvidia* by itself. It prints the
driver's result and stays until its input ends.
"""

from __future__ import annotations

import ctypes
import struct
import sys
from pathlib import Path

_DYNSYM = 11


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


def main(size: int) -> None:
    library = ctypes.CDLL("libcuda.so.1")
    context = ctypes.c_void_p()
    for result in (
        library.cuInit(0),
        library.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0),
        library.cuCtxSetCurrent(context),
    ):
        assert result == 0, result
    maps = Path("/proc/self/maps").read_text().splitlines()
    first = next(line for line in maps if line.endswith("/libcuda.so.1"))
    base, path = int(first.partition("-")[0], 16), first.split()[-1]
    address = base + symbols(Path(path).read_bytes())[b"cuMemAlloc_v2"]
    take = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t)(address)
    pointer = ctypes.c_uint64()
    print("ok", take(ctypes.byref(pointer), size), flush=True)  # noqa: T201 - the test reads it
    sys.stdin.read()


if __name__ == "__main__":
    main(int(sys.argv[1]))
