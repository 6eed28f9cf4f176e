"""Files on a node: atomic writes, labels, untrusted reads, process locks.

What the agent writes is renamed into place, so that no reader sees half of it, and survives a power
cut where that matters. What a tenant can write may be a symlink, a pipe, a terabyte, or be
truncated under the reader: it is opened without following or waiting, checked, and read by offset,
never mapped.

Where the kernel has SELinux a container may use only files with the label of containers' files, and
the runtime labels nothing that a CDI spec mounts. So what is mounted into containers gets it here.

Each process of a container holds a lock on byte LOCK_BASE + index of its entry in the state file
(an OFD lock, which the kernel drops however the process ends). `any_held` only queries it.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import logging
import os
import stat
import struct
import uuid
from collections.abc import Iterator
from pathlib import Path

from hami.wire import file_layout

_log = logging.getLogger(__name__)

#: Exists where SELinux is on, also in a container.
_SELINUX = Path("/sys/fs/selinux")
_ATTRIBUTE = "security.selinux"
_TYPE = b":container_file_t:"
#: Without categories: every container may use it that has it mounted.
_LABEL = b"system_u:object_r" + _TYPE + b"s0\0"

_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY


class UntrustedFileError(Exception):
    """A file that a tenant can write cannot be used; the message names it and says why."""


def write_atomic(path: Path, content: bytes, *, mode: int = 0o644, durable: bool = False) -> None:
    """Write a file in one step; `durable`: it is on disk when this returns.

    The draft is beside it under a name that begins with a dot and has no suffix, so a folder that
    is watched (as CDI's is) shows only complete files.
    """
    draft = path.parent / f".{uuid.uuid4().hex}"
    try:
        handle = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
        with os.fdopen(handle, "wb") as file:
            os.fchmod(file.fileno(), mode)  # independent of the umask
            file.write(content)
            if durable:
                file.flush()
                os.fsync(file.fileno())
        draft.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            draft.unlink()
        raise
    if durable:
        sync_folder(path.parent)


def label_for_containers(*paths: Path) -> None:
    """Let containers use these files and folders under SELinux; elsewhere do nothing."""
    if not _SELINUX.is_dir():
        return
    for path in paths:
        try:
            if _TYPE not in os.getxattr(path, _ATTRIBUTE, follow_symlinks=False):
                os.setxattr(path, _ATTRIBUTE, _LABEL, follow_symlinks=False)
        except OSError as error:
            _report_unlabelled(error.strerror or str(error))


@functools.cache  # each error once
def _report_unlabelled(error: str) -> None:
    _log.warning(
        "cannot label files for containers under SELinux; run the agent privileged, or allow its "
        "domain to relabel to container_file_t",
        extra={"error": error},
    )


def sync_folder(folder: Path) -> None:
    """Write the folder's entries to disk: before that, a rename is not durable."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextlib.contextmanager
def untrusted(path: Path) -> Iterator[tuple[int, int]]:
    """Open a file that a tenant can write; yield its descriptor and its current size."""
    try:
        handle = os.open(path, _FLAGS)
    except OSError as error:
        raise UntrustedFileError(f"{path} cannot be opened: {error.strerror}") from error
    try:
        status = os.fstat(handle)
        if not stat.S_ISREG(status.st_mode):
            raise UntrustedFileError(f"{path} is not a regular file")
        yield handle, status.st_size
    finally:
        os.close(handle)


def read_at(handle: int, size: int, offset: int) -> bytes:
    """Read up to `size` bytes; fewer if the file ends before, whatever its size was."""
    parts = []
    while size:
        part = os.pread(handle, size, offset)
        if not part:
            break
        parts.append(part)
        size -= len(part)
        offset += len(part)
    return b"".join(parts)


#: struct flock: type, whence, start, length, pid.
_FLOCK = struct.Struct("@hhqqi0q")


def any_held(handle: int, first: int = 0, count: int = file_layout.MAX_PROCESSES) -> bool:
    """Return whether a process holds the lock of one of these process entries."""
    start = file_layout.LOCK_BASE + first
    asked = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, start, count, 0)
    answer: bytes = fcntl.fcntl(handle, fcntl.F_OFD_GETLK, asked)
    kind: int = _FLOCK.unpack(answer)[0]
    return kind != fcntl.F_UNLCK
