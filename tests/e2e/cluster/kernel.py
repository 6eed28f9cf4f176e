"""The few system calls that Python 3.11 does not offer: namespaces and mounts."""

from __future__ import annotations

import contextlib
import ctypes
import os
from collections.abc import Iterator
from pathlib import Path

CLONE_NEWNS = 0x00020000
CLONE_NEWUTS = 0x04000000
CLONE_NEWIPC = 0x08000000
CLONE_NEWPID = 0x20000000
CLONE_NEWNET = 0x40000000
MS_RDONLY = 1
MS_NOSUID = 2
MS_NODEV = 4
MS_REMOUNT = 32
MS_BIND = 4096
MS_REC = 16384
MS_PRIVATE = 1 << 18
MS_SHARED = 1 << 20
MNT_DETACH = 2
PR_SET_PDEATHSIG = 1
PIVOT_ROOT = {"x86_64": 155, "aarch64": 41}

_libc = ctypes.CDLL(None, use_errno=True)


def _check(result: int, call: str) -> None:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{call}: {os.strerror(number)}")


def unshare(flags: int) -> None:
    _check(_libc.unshare(ctypes.c_int(flags)), f"unshare({flags:#x})")


@contextlib.contextmanager
def network_of(pid: int) -> Iterator[None]:
    """Put this thread, and the threads it starts meanwhile, into the network of a process."""
    with Path("/proc/thread-self/ns/net").open("rb") as own:
        with Path(f"/proc/{pid}/ns/net").open("rb") as other:
            _enter_network(other.fileno())
        try:
            yield
        finally:
            _enter_network(own.fileno())


def _enter_network(descriptor: int) -> None:
    _check(_libc.setns(ctypes.c_int(descriptor), ctypes.c_int(CLONE_NEWNET)), "setns(network)")


def mount(source: str, target: str, kind: str | None, flags: int, data: str | None = None) -> None:
    _check(
        _libc.mount(
            source.encode(),
            target.encode(),
            kind.encode() if kind else None,
            ctypes.c_ulong(flags),
            data.encode() if data else None,
        ),
        f"mount({source}, {target}, {kind})",
    )


def bind(source: str, target: str, *, read_only: bool = False, recursive: bool = False) -> None:
    flags = MS_BIND | (MS_REC if recursive else 0)
    mount(source, target, None, flags)
    if read_only:
        mount("none", target, None, MS_REMOUNT | MS_BIND | MS_RDONLY)


def pivot_root(new: str, old: str) -> None:
    number = PIVOT_ROOT[os.uname().machine]
    _check(
        _libc.syscall(ctypes.c_long(number), new.encode(), old.encode()),
        "pivot_root",
    )


def detach(target: str) -> None:
    _check(_libc.umount2(target.encode(), ctypes.c_int(MNT_DETACH)), f"umount({target})")


def die_with_parent(signal: int) -> None:
    _check(_libc.prctl(PR_SET_PDEATHSIG, ctypes.c_ulong(signal), 0, 0, 0), "prctl")
