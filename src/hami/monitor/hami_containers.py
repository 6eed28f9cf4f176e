"""Files of containers that HAMi's plugin started: found, read, answered, and cleared away.

`<hook>/vgpu/containers/<pod UID>_<container>/*.cache`, in a folder that the container's processes
can write. It is opened without following links, read and written by offset, and never mapped:
whoever cuts off a mapped file kills its reader.
"""

from __future__ import annotations

import os
import shutil
import stat
import struct
from collections.abc import Iterator
from pathlib import Path

import msgspec

from hami.monitor.containers import Key, UnreadableError
from hami.node import files
from hami.node.layout import NodeLayout, is_uid
from hami.wire import hami_region
from hami.wire.hami_region import Region

#: Entries of a folder that are looked at; HAMi's library makes two.
_MOST_ENTRIES = 64
_MOST_FILES = 2
_FIELD = struct.Struct("<i")
_WRITE_FLAGS = os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY


class Folder(msgspec.Struct, frozen=True):
    key: Key
    path: Path


def folders(layout: NodeLayout) -> Iterator[Folder]:
    """Yield the folders whose names are those of a pod's container; no other is touched."""
    try:
        names = sorted(os.listdir(layout.hami_containers))  # noqa: PTH208 - only names
    except OSError:
        return  # HAMi's plugin has never run here
    for name in names:
        uid, separator, container = name.partition("_")
        if separator and container and is_uid(uid):
            yield Folder(Key(uid, container), layout.hami_containers / name)


def cache_of(folder: Path) -> Path | None:
    """Return a folder's region; None while no process has made one."""
    wanted = []
    with os.scandir(folder) as entries:
        for place, entry in enumerate(entries):
            if place == _MOST_ENTRIES:
                raise UnreadableError("folder", f"{folder} has more than {_MOST_ENTRIES} entries")
            if "libvgpu.so" in entry.name or entry.name.endswith(".cache"):
                wanted.append(entry.name)
    if len(wanted) > _MOST_FILES:
        raise UnreadableError("folder", f"{folder} has more than {_MOST_FILES} files of a library")
    return next((folder / name for name in sorted(wanted) if name.endswith(".cache")), None)


def read(path: Path) -> Region:
    with files.untrusted(path) as (handle, size):
        version = hami_region.version_of(files.read_at(handle, hami_region.MARK_SIZE, 0), size)
        head = _exactly(handle, version.head, 0)
        offset, length = version.tail
        tail = _exactly(handle, length, offset)
        used = hami_region.processes_used(tail)
        processes = _exactly(handle, used * version.process.size, version.head)
        return hami_region.decode(version, head, processes, tail)


def write(path: Path, *, recent_kernel: int | None, utilization_switch: int | None) -> None:
    """Change the two numbers that HAMi's library takes from its monitor; None leaves one alone."""
    try:
        handle = os.open(path, _WRITE_FLAGS)
    except OSError as error:
        raise files.UntrustedFileError(f"{path} cannot be opened: {error.strerror}") from error
    try:
        status = os.fstat(handle)
        if not stat.S_ISREG(status.st_mode):
            raise files.UntrustedFileError(f"{path} is no regular file")
        mark = files.read_at(handle, hami_region.MARK_SIZE, 0)
        version = hami_region.version_of(mark, status.st_size)
        told = {"recent_kernel": recent_kernel, "utilization_switch": utilization_switch}
        for name, value in told.items():
            if value is not None:
                os.pwrite(handle, _FIELD.pack(value), version.offset(name))
    finally:
        os.close(handle)


def clear(folder: Path, *, older_than: float) -> bool:
    """Remove a folder that nothing has changed since a time; tell whether it was old enough."""
    status = folder.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_mtime > older_than:
        return False
    shutil.rmtree(folder)  # follows no link, also none that is put in its way meanwhile
    return True


def _exactly(handle: int, size: int, offset: int) -> bytes:
    data = files.read_at(handle, size, offset)
    if len(data) < size:
        raise UnreadableError("truncated", "was cut off while it was read")
    return data
