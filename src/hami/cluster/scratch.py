"""Large temporary arrays without page faults.

A decision on thousands of nodes makes some dozen arrays of a few hundred KiB and drops them again.
By default glibc gives such memory back to the kernel each time, and touching it anew costs more
than the arithmetic. Its threshold follows the largest block that was ever freed, up to 32 MiB, so
freeing one that was never touched is all it takes; nothing is used up by it. Other C libraries are
not affected.
"""

from __future__ import annotations

import numpy as np

#: Just below what glibc takes as the highest threshold.
_BLOCK_BYTES = 31 * 2**20


def keep_freed_memory() -> None:
    """Let the process reuse freed memory up to some tens of MiB instead of returning it."""
    block = np.empty(_BLOCK_BYTES, dtype=np.uint8)
    del block
