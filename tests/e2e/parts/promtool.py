"""promtool out of Debian's package: it reads metrics as Prometheus does.

Of the package and all it depends on the one program is kept; it runs on the libraries of this
machine, whose packages they are.
"""

from __future__ import annotations

import platform
from pathlib import Path

from hami.image import debian
from tests.e2e.parts import cache
from tests.e2e.parts.cache import Part, Say
from tests.e2e.parts.debian_root import debian_root

PACKAGE = "prometheus"
PROGRAM = "usr/bin/promtool"


def promtool() -> Part:
    return Part(
        name="promtool",
        version=debian_root().version,
        made_from={"package": PACKAGE, "program": PROGRAM, "machine": platform.machine()},
        make=_make,
        takes="1 min",
    )


def _make(into: Path, say: Say) -> None:
    debian.unpack(
        [PACKAGE],
        into,
        cache=cache.packages_folder(),
        skip=lambda name: name != PROGRAM,
        alternatives={},
        say=say,
    )
