"""Small file systems in memory: mount(2) and umount2(2), which Python does not have."""

from __future__ import annotations

import ctypes
import os
import re
from pathlib import Path

_MS_NOSUID = 2
_MS_NODEV = 4
_MNT_DETACH = 2

_MOUNTINFO = Path("/proc/self/mountinfo")
_OCTAL = re.compile(r"\\([0-7]{3})")


def mount(folder: Path, *, size: int, inodes: int) -> None:
    """Mount an empty tmpfs; OSError says why not.

    Programs may be started from it, as far as its flags go: the bind mount in a container takes
    the flags over, and a container with a user namespace may not change them.
    """
    options = f"size={size},nr_inodes={inodes},mode=0755"
    flags = ctypes.c_ulong(_MS_NOSUID | _MS_NODEV)
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mount(b"hami", os.fsencode(folder), b"tmpfs", flags, options.encode()):
        raise _last_error(folder)


def unmount(folder: Path) -> None:
    """Take it out of the tree at once; it ends when its last user does."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.umount2(os.fsencode(folder), _MNT_DETACH):
        raise _last_error(folder)


def is_shown(folder: Path, mountinfo: str | None = None) -> bool:
    """Tell whether what is mounted below the folder is seen by the node as well.

    In a container the folder is a part of the node's tree, mounted into ours. Unless that mount is
    shared (`mountPropagation: Bidirectional`), a mount below it stays with us.
    """
    text = _MOUNTINFO.read_text() if mountinfo is None else mountinfo
    root, shared = "/", False
    longest = -1
    real = folder.resolve()
    for line in text.splitlines():
        fields = line.split(" ")
        point = Path(_OCTAL.sub(lambda found: chr(int(found[1], 8)), fields[4]))
        # Of mounts on one place the last lies on top.
        if real.is_relative_to(point) and len(point.parts) >= longest:
            longest = len(point.parts)
            root = fields[3]
            shared = any(field.startswith("shared:") for field in fields[6 : fields.index("-", 6)])
    return shared or root == "/"


def _last_error(folder: Path) -> OSError:
    number = ctypes.get_errno()
    return OSError(number, os.strerror(number), str(folder))
