"""The root file system of a machine with only make and Python.

What every Debian has (its essential packages), and what README asks for.
"""

from __future__ import annotations

import platform
from pathlib import Path

from hami.image import debian
from tests.e2e.parts import cache
from tests.e2e.parts.cache import Part, Say

#: libstdc++6 comes with apt, which every Debian has.
ESSENTIAL = (
    *("bash", "coreutils", "findutils", "grep", "hostname", "mawk", "sed", "util-linux"),
    "libstdc++6",
)
ASKED_FOR = ("make", "python3", "python3-venv", "ca-certificates")


def clean_room_root() -> Part:
    return Part(
        name="clean-room-root",
        version="1",
        made_from={
            "packages": repr((*ESSENTIAL, *ASKED_FOR)),
            "machine": platform.machine(),
        },
        make=_make,
        takes="1 min",
    )


def _make(into: Path, say: Say) -> None:
    debian.unpack((*ESSENTIAL, *ASKED_FOR), into, cache=cache.packages_folder(), say=say)
