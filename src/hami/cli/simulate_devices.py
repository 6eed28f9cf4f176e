"""`hami simulate-devices`: its flags, their help and rules, and the process."""

from __future__ import annotations

import os
from collections.abc import Sequence

from hami.cli import flag_checks, flags, run
from hami.cli.flag_values import Failure, Table
from hami.simulation.settings import Settings

_DESCRIPTION = (
    "Offer cards that do not exist: register them on the node as their vendor's device plugin\n"
    "does, offer them to kubelet, and answer by the vendor's protocol. To try a fleet, and for\n"
    "tests: containers start, but get no device. Runs once on every node, as root."
)
_HELP = {
    "The node": {
        "node_name": run.NODE["node_name"],
        "kubelet_dir": "kubelet's folder, with device-plugins",
    },
    "Devices": {
        "devices_file": "YAML file that describes nodes and their cards "
        "(docs/simulated-devices.md)",
        "device_config_file": "device-config.yaml, which changes the built-in vendors; empty: "
        "unchanged",
    },
    "Serving": {"metrics_bind_address": "where health answers; empty: nowhere"},
    "The API server": {
        name: text for name, text in run.API_SERVER.items() if name != "resync_interval"
    },
    "Logs": run.DEBUG,
}


def _file(settings: Settings, failure: Failure) -> None:
    if not settings.devices_file:
        raise failure("devices_file", "is empty", "name the file that describes the devices")


TABLE = Table(
    Settings,
    description=_DESCRIPTION,
    help=_HELP,
    checks=(flag_checks.on_node, flag_checks.metrics_address, _file),
)


def main(arguments: Sequence[str], *, prog: str) -> int:
    resolved = flags.resolve(TABLE, arguments, os.environ, prog=prog)
    return run.run("hami.simulation.main", resolved, fast=False)
