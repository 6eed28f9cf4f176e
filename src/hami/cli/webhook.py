"""`hami webhook`: its flags, their help and rules, and the process."""

from __future__ import annotations

import os
from collections.abc import Sequence

from hami.admission.settings import Settings
from hami.cli import flag_checks, flags, run
from hami.cli.flag_values import Failure, Table

_DESCRIPTION = (
    "Replace MIG profiles that the cluster does not have when pods are created, and nothing else:\n"
    "for clusters without `hami scheduler`, which does the same."
)
_HELP = {
    "Serving": {
        "http_bind": "where /webhook and health answer",
        "cert_file": "certificate (PEM) to serve HTTPS with; read again when it changes",
        "key_file": "its key (PEM)",
        "metrics_bind_address": "where /metrics answers; empty: nowhere",
        "shutdown_delay": "time that new requests are still answered after SIGTERM",
        "drain_timeout": "longest time for requests under way to end after that",
    },
    "Fallback": {
        "mig_fallback": "when a profile counts as missing: type (no node has it) or available (or "
        "none is free)",
        "mig_fallback_file": "YAML file of chains of profiles; empty: the built-in ones",
        "device_config_file": "device-config.yaml, for the name of the GPU resource; empty: "
        "nvidia.com/gpu",
    },
    "The API server": run.API_SERVER,
    "Logs and traces": run.LOGS_AND_TRACES,
}


def _fallback(settings: Settings, failure: Failure) -> None:
    modes = flag_checks.fallback_modes(off=False)
    meaning = "a way to replace MIG profiles"
    flag_checks.one_of("mig_fallback", settings.mig_fallback, modes, failure, meaning=meaning)


TABLE = Table(
    Settings,
    description=_DESCRIPTION,
    help=_HELP,
    checks=(flag_checks.addresses, flag_checks.certificates, _fallback, flag_checks.traces),
)


def main(arguments: Sequence[str], *, prog: str) -> int:
    resolved = flags.resolve(TABLE, arguments, os.environ, prog=prog)
    return run.run("hami.admission.main", resolved)
