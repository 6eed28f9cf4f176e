"""What is mounted below a folder, taken away: an agent that may mount gives containers a tmpfs."""

from __future__ import annotations

import contextlib
from pathlib import Path

from hami.agent.containers import state_files

_MOUNTINFO = Path("/proc/self/mountinfo")
_POINT = 4


def unmount_below(folder: Path) -> None:
    """Unmount everything below a folder, the innermost first; what resists is left."""
    real = folder.resolve()
    lines = _MOUNTINFO.read_text().splitlines()
    points = [Path(line.split(" ")[_POINT]) for line in lines]
    for point in reversed(points):
        if point.is_relative_to(real):
            with contextlib.suppress(OSError):
                state_files.unmount(point)
