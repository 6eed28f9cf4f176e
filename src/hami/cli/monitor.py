"""`hami monitor`: its flags, their help and rules, and the process."""

from __future__ import annotations

import os
from collections.abc import Sequence

from hami.cli import flag_checks, flags, run
from hami.cli.flag_values import Table
from hami.monitor.settings import Settings

_DESCRIPTION = (
    "Show what containers use of a node's GPUs, and report those that take more than their share\n"
    "or bypass the limits. Runs once on every GPU node, beside the agent."
)
_HELP = {
    "The node": {
        "node_name": run.NODE["node_name"],
        "hook_path": run.NODE["hook_path"],
        "state_dir": run.NODE["state_dir"],
        "run_dir": run.NODE["run_dir"],
        "proc_dir": run.NODE["proc_dir"],
        "driver_root": run.NODE["driver_root"],
        "hami_resync_interval": "age at which files that HAMi's plugin left of a deleted pod are "
        "removed",
        "overuse_tolerance": "MiB above its limit, for each process with libvgpu, that a container "
        "may have by the driver's account before its pod is marked for overuse: the driver takes "
        "memory for loaded code before it can be counted",
    },
    "Serving": {
        "metrics_bind_address": "where /metrics and health answer; empty: nowhere",
        "legacy_metrics": "write HAMi's old metric names beside the new ones",
    },
    "The API server": run.API_SERVER,
    "Logs": run.DEBUG,
}

TABLE = Table(
    Settings,
    description=_DESCRIPTION,
    help=_HELP,
    checks=(flag_checks.on_node, flag_checks.metrics_address),
)


def main(arguments: Sequence[str], *, prog: str) -> int:
    resolved = flags.resolve(TABLE, arguments, os.environ, prog=prog)
    return run.run("hami.monitor.main", resolved, fast=False)
