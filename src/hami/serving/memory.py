"""What a process keeps of the memory that it does not use: little.

glibc keeps what was freed for the next time. A process that reads a large list every quarter of an
hour, and otherwise little, would hold the room for that list for ever: twice what it needs. Here
its limits are fixed (by themselves they grow with the largest buffer that was ever freed), and what
lies free between things in use is given back from time to time.

Another C library has other habits and none of these functions; nothing is done then.
"""

from __future__ import annotations

import asyncio
import ctypes
from typing import NoReturn

#: Names of mallopt(3).
_TRIM_THRESHOLD, _MMAP_THRESHOLD, _ARENA_MAX = -1, -3, -8
#: Bytes from which a buffer is the system's as soon as it is freed. Python reads from a TLS
#: connection into one of 256 KiB each time: those must stay, or every request pays for new pages.
_LARGE = 512 * 1024
#: Bytes that may lie free at the end of the heap.
_SPARE = 1024 * 1024
#: Seconds. Where there is nothing to give back, a look costs some microseconds.
_INTERVAL = 10.0

_library = ctypes.CDLL(None)


def bound() -> None:
    """Let no freed buffer stay ours because an even larger one was freed before."""
    set_option = getattr(_library, "mallopt", None)
    if set_option is None:
        return
    set_option(_MMAP_THRESHOLD, _LARGE)
    set_option(_TRIM_THRESHOLD, _SPARE)
    # Threads would each get a heap of their own, and ours have little to do.
    set_option(_ARENA_MAX, 1)


def give_back() -> None:
    trim = getattr(_library, "malloc_trim", None)
    if trim is not None:
        trim(0)


async def keep_giving_back() -> NoReturn:
    while True:
        give_back()
        await asyncio.sleep(_INTERVAL)
