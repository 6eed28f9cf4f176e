"""The flags of `hami monitor`: what each means, and what must hold between them."""

from __future__ import annotations

from hami.cli import common_flags, flag_checks
from hami.cli.flag_table import Table
from hami.monitor.settings import Settings

_DESCRIPTION = (
    "Show what containers use of a node's GPUs, and report whoever takes more than his share or\n"
    "runs past the limiter. Runs once on every GPU node, beside the agent."
)
_HELP = {
    "The node": {
        "node_name": common_flags.NODE["node_name"],
        "hook_path": common_flags.NODE["hook_path"],
        "state_dir": common_flags.NODE["state_dir"],
        "run_dir": common_flags.NODE["run_dir"],
        "proc_dir": "the node's processes; needs the host's PID namespace",
        "driver_root": common_flags.NODE["driver_root"],
        "hami_resync_interval": "age at which what HAMi's plugin left of a gone pod is removed",
    },
    "Serving": {
        "metrics_bind_address": "where /metrics and health answer; empty: nowhere",
        "legacy_metrics": "write HAMi's old metric names beside the new ones",
    },
    "The API server": common_flags.API_SERVER,
    "Telling": common_flags.DEBUG,
}

TABLE = Table(
    Settings,
    description=_DESCRIPTION,
    help=_HELP,
    checks=(flag_checks.on_node, flag_checks.metrics_address),
)
