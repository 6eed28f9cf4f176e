"""System calls that Python 3.11 lacks: namespaces, mounts, pivot_root, prctl.

Only the standard library, and little of it: the start of every container loads this.
"""

from __future__ import annotations

import ctypes
import os

#: Attributes of a mount, as mount_setattr(2) numbers them.
READ_ONLY, NO_SUID, NO_DEV, NO_EXEC = 1, 2, 4, 8

_NEW_MOUNTS, _NEW_HOSTNAME, _NEW_USER = 0x00020000, 0x04000000, 0x10000000
_BIND, _RECURSIVE, _PRIVATE, _REMOUNT = 0x1000, 0x4000, 0x40000, 0x20
_DETACH = 2
_AT_FDCWD, _AT_RECURSIVE = -100, 0x8000
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
_ENOSPC, _ENOSYS = 28, 38
_KILL = 9
_MOST_SIGNALS = 64
#: By the machine: pivot_root has no function in the C library; mount_setattr has one number on all.
_PIVOT_ROOT = {"x86_64": 155, "aarch64": 41}
_MOUNT_SETATTR = 442

_libc = ctypes.CDLL(None, use_errno=True)


def _check(result: int, what: str) -> None:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), what)


def _unshare(flags: int) -> None:
    try:
        _check(_libc.unshare(flags), "unshare")
    except OSError as error:
        if error.errno != _ENOSPC:
            raise
        why = "user.max_user_namespaces allows no more of them"
        raise OSError(_ENOSPC, why, "unshare") from error


def enter_namespaces() -> None:
    """Enter new mount and hostname namespaces; without the right to, also a user namespace.

    User and group ids stay the same in it, so files keep their owners.
    """
    try:
        _unshare(_NEW_MOUNTS | _NEW_HOSTNAME)
    except PermissionError:
        user, group = os.geteuid(), os.getegid()
        _unshare(_NEW_USER | _NEW_MOUNTS | _NEW_HOSTNAME)
        _write("/proc/self/setgroups", "deny")
        _write("/proc/self/uid_map", f"{user} {user} 1")
        _write("/proc/self/gid_map", f"{group} {group} 1")
    _mount(None, "/", None, _RECURSIVE | _PRIVATE, None)


def _write(path: str, text: str) -> None:
    handle = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(handle, text.encode())
    except OSError as error:
        raise OSError(error.errno, error.strerror, path) from None
    finally:
        os.close(handle)


def set_hostname(name: str) -> None:
    text = os.fsencode(name)[:63]
    _check(_libc.sethostname(text, len(text)), "sethostname")


def _mount(source: str | None, target: str, kind: str | None, flags: int, data: str | None) -> None:
    words = [None if word is None else os.fsencode(word) for word in (source, target, kind, data)]
    _check(
        _libc.mount(words[0], words[1], words[2], ctypes.c_ulong(flags), words[3]),
        f"mount {source} at {target}",
    )


def mount_memory(target: str, options: str) -> None:
    _mount("tmpfs", target, "tmpfs", NO_SUID | NO_DEV, options)


def bind(source: str, target: str) -> None:
    """Bind-mount a file or folder, with all mounts below it."""
    _mount(source, target, None, _BIND | _RECURSIVE, None)


def restrict(target: str, attributes: int, *, recursive: bool = True) -> None:
    """Add attributes to a mount; it keeps its others, as the kernel demands."""
    if attributes:
        _set_attributes(target, attributes, 0, recursive=recursive)


def make_writable(target: str) -> None:
    """Take the read-only attribute from one mount of our own."""
    _set_attributes(target, 0, READ_ONLY, recursive=False)


def _set_attributes(target: str, added: int, removed: int, *, recursive: bool) -> None:
    changes = (ctypes.c_uint64 * 4)(added, removed, 0, 0)
    result = _libc.syscall(
        ctypes.c_long(_MOUNT_SETATTR),
        ctypes.c_int(_AT_FDCWD),
        os.fsencode(target),
        ctypes.c_uint(_AT_RECURSIVE if recursive else 0),
        changes,
        ctypes.c_size_t(ctypes.sizeof(changes)),
    )
    if result < 0 and ctypes.get_errno() == _ENOSYS:  # Linux before 5.12: this one mount only
        had = os.statvfs(target).f_flag & ~removed
        _mount(None, target, None, _REMOUNT | _BIND | had | added, None)
        return
    _check(result, f"attributes of {target}")


def pivot(root: str) -> None:
    """Make a mounted folder the root, and let go of the old one."""
    os.chdir(root)
    number = _PIVOT_ROOT[os.uname().machine]
    _check(_libc.syscall(ctypes.c_long(number), b".", b"."), "pivot_root")
    _check(_libc.umount2(b".", _DETACH), "umount2 of the old root")
    os.chdir("/")


def die_with(parent: int) -> None:
    """Be killed when the parent ends, however it ends."""
    _check(_libc.prctl(_PR_SET_PDEATHSIG, _KILL, 0, 0, 0), "prctl(PR_SET_PDEATHSIG)")
    if os.getppid() != parent:
        os._exit(1)  # the parent ended before prctl


def become_subreaper() -> None:
    """Become the parent of every descendant whose own parent ends."""
    _check(_libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0), "prctl(PR_SET_CHILD_SUBREAPER)")


def forget_ignored_signals() -> None:
    """Reset ignored signals to their defaults, before exec.

    Python ignores some for itself, and the sandbox's parent may have more: a shell ignores SIGQUIT
    for background jobs. Signals that cannot be set stay.
    """
    for number in range(1, _MOST_SIGNALS + 1):
        _libc.signal(number, None)
