"""`hami scheduler`: the scheduler process."""

from __future__ import annotations

import os
from collections.abc import Sequence

from hami.cli import flags, processes, scheduler_flags


def main(arguments: Sequence[str], *, prog: str) -> int:
    resolved = flags.resolve(scheduler_flags.TABLE, arguments, os.environ, prog=prog)
    return processes.run("hami.scheduler.process", resolved)
