"""`hami agent`: a GPU node's device plugin."""

from __future__ import annotations

import os
from collections.abc import Sequence

from hami.cli import agent_flags, flags, processes


def main(arguments: Sequence[str], *, prog: str) -> int:
    resolved = flags.resolve(agent_flags.TABLE, arguments, os.environ, prog=prog)
    return processes.run("hami.agent.process", resolved, fast=False)
