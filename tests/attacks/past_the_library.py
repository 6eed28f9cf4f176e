"""A program that looks for the driver's functions past libvgpu.

    python past_the_library.py address|dlmopen|dlvsym|deepbind|copy|renamed|crowded|blinded BYTES

By `address` it first uses CUDA as any program does, so it has a process entry. Then it takes memory
by a function whose address it has read from the driver's ELF file, as a program would that talks to
/dev/nvidia* by itself. `copy` looks it up in a second copy of the driver, `renamed` in the only
one, which has another name for itself. `crowded` has no file descriptor left when the library looks
for its policy, and for `blinded` every file of /proc is empty. The others are doors of the dynamic
linker. It prints the driver's results and stays until its input ends.
"""

from __future__ import annotations

import os
import platform
import resource
import struct
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

_RTLD_DEEPBIND = 8
if sys.argv[1:2] == ["deepbind"]:
    # The module that looks everything up is opened so: it prefers the linker's own dlsym.
    sys.setdlopenflags(os.RTLD_NOW | _RTLD_DEEPBIND)
import ctypes  # noqa: E402

_DYNSYM = 11
_DRIVER = b"libcuda.so.1"
_NEW_NAMESPACE = -1
_VERSIONS = (b"GLIBC_2.34", b"GLIBC_2.2.5", b"GLIBC_2.17")
#: These look the first functions up as any program does.
_ORDINARY = ("address", "deepbind", "crowded", "blinded")

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
    elif how == "copy":
        linker.dlsym(ctypes.c_void_p(linker.dlopen(_DRIVER, os.RTLD_NOW)), b"cuInit")
        handle = linker.dlopen(copied(_DRIVER), os.RTLD_NOW)
    elif how == "renamed":
        handle = linker.dlopen(copied(_DRIVER[::-1]), os.RTLD_NOW)
    else:
        handle = linker.dlopen(_DRIVER, os.RTLD_NOW)
    assert handle

    look = _dlsym_of_libc(linker) if how == "dlvsym" else linker.dlsym

    def look_up(name: str) -> Callable[..., int]:
        return _function(look(ctypes.c_void_p(handle), name.encode()))

    return look_up


def _dlsym_of_libc(linker: ctypes.CDLL) -> Callable[..., int]:
    """Return the C library's own dlsym, by one of the versions that it has had."""
    places = [(file, version) for file in (b"libc.so.6", b"libdl.so.2") for version in _VERSIONS]
    for file, version in places:
        library = ctypes.c_void_p(linker.dlopen(file, os.RTLD_NOW))
        if library.value and (found := linker.dlvsym(library, b"dlsym", version)):
            return ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_char_p)(found)
    raise LookupError("dlsym")


def copied(name: bytes) -> bytes:
    """Copy the driver's file; the copy has another name for itself."""
    folders = os.environ["LD_LIBRARY_PATH"].split(":")
    driver = Path(folders[0], _DRIVER.decode()).read_bytes()
    copy = os.memfd_create("copy")
    os.write(copy, driver.replace(b"\0" + _DRIVER + b"\0", b"\0" + name + b"\0"))
    return f"/proc/self/fd/{copy}".encode()


def _read_nothing() -> None:
    """Let the kernel answer every read of as much as stdio reads of /proc with an end of file."""
    number = {"x86_64": 0, "aarch64": 63}[platform.machine()]
    load, equal, answer, allow, error = 0x20, 0x15, 0x06, 0x7FFF0000, 0x00050000
    lines = [
        (load, 0, 0, 0),  # the system call
        (equal, 0, 3, number),
        (load, 0, 0, 32),  # its third argument
        (equal, 0, 1, 1024),
        (answer, 0, 0, error),
        (answer, 0, 0, allow),
    ]
    code = ctypes.create_string_buffer(b"".join(struct.pack("<HBBI", *line) for line in lines))
    head = struct.pack("<HxxxxxxQ", len(lines), ctypes.addressof(code))
    program = ctypes.create_string_buffer(head)
    libc = ctypes.CDLL(None)
    libc.prctl.argtypes = [ctypes.c_int] + [ctypes.c_void_p] * 4
    assert libc.prctl(38, 1, 0, 0, 0) == 0  # PR_SET_NO_NEW_PRIVS
    assert libc.prctl(22, 2, ctypes.addressof(program), 0, 0) == 0  # PR_SET_SECCOMP


def _function(address: int) -> Callable[..., int]:
    return ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t)(address)


def _typed(function: Any) -> Callable[..., int]:
    function.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    return cast(Callable[..., int], function)


def main(how: str, size: int) -> None:
    usual = ctypes.CDLL(_DRIVER.decode() if how != "renamed" else None)
    ordinary: Lookup = lambda name: _typed(getattr(usual, name))  # noqa: E731 - as the others
    if how == "crowded":
        _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (0, most))
        ordinary("cuInit")
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    elif how == "blinded":
        _read_nothing()
    first = ordinary if how in _ORDINARY else by_the_linker(how)
    take = (by_address if how == "address" else first)("cuMemAlloc_v2")
    context, pointer = ctypes.c_void_p(), ctypes.c_uint64()
    results = [
        first("cuInit")(None, 0),
        first("cuDevicePrimaryCtxRetain")(ctypes.byref(context), 0),
        first("cuCtxSetCurrent")(context, 0),
        take(ctypes.byref(pointer), size),
    ]
    print("ok", *results, flush=True)  # noqa: T201 - the test reads it
    sys.stdin.read()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
