"""Whether processes of a container live: the kernel knows who holds the lock of a slot.

Each process of a container holds a lock on byte LOCK_BASE + slot of the state file (an OFD lock,
which the kernel drops however the process ends). Whoever looks from outside only asks.
"""

from __future__ import annotations

import fcntl
import os
import struct

from hami.wire import region

#: struct flock: type, whence, start, length, pid.
_FLOCK = struct.Struct("@hhqqi0q")


def any_held(handle: int, first: int = 0, count: int = region.MAX_SLOTS) -> bool:
    """Tell whether somebody holds the lock of one of these slots."""
    start = region.LOCK_BASE + first
    asked = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, start, count, 0)
    answer: bytes = fcntl.fcntl(handle, fcntl.F_OFD_GETLK, asked)
    kind: int = _FLOCK.unpack(answer)[0]
    return kind != fcntl.F_UNLCK
