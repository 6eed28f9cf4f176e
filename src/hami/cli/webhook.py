"""`hami webhook`: MIG fallback alone."""

from __future__ import annotations

import os
from collections.abc import Sequence

from hami.cli import flags, processes, webhook_flags


def main(arguments: Sequence[str], *, prog: str) -> int:
    resolved = flags.resolve(webhook_flags.TABLE, arguments, os.environ, prog=prog)
    return processes.run("hami.admission.process", resolved)
