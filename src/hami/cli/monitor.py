"""`hami monitor`: what containers use of a GPU node's cards."""

from __future__ import annotations

import os
from collections.abc import Sequence

from hami.cli import flags, monitor_flags, processes


def main(arguments: Sequence[str], *, prog: str) -> int:
    resolved = flags.resolve(monitor_flags.TABLE, arguments, os.environ, prog=prog)
    return processes.run("hami.monitor.process", resolved, fast=False)
