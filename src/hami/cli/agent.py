"""`hami agent`: its flags, their help and rules, and the process."""

from __future__ import annotations

import os
from collections.abc import Sequence

from hami.agent.settings import Settings
from hami.cli import flag_checks, flags, run
from hami.cli.flag_values import Failure, Table

_DESCRIPTION = (
    "Offer a node's GPUs to kubelet in shares, and give each container the share that the\n"
    "scheduler granted it. Runs once on every GPU node, as root."
)
_HELP = {
    "The node": {
        "node_name": run.NODE["node_name"],
        "kubelet_dir": "kubelet's folder, with device-plugins and pod-resources",
        "cdi_dir": "folder of temporary CDI specs; the runtime must read it",
        "nvidia_cdi_dirs": "folders with NVIDIA's own CDI specs, separated by commas",
        "hook_path": run.NODE["hook_path"],
        "state_dir": run.NODE["state_dir"],
        "run_dir": run.NODE["run_dir"],
        "proc_dir": run.NODE["proc_dir"],
        "runtime_endpoint": "CRI socket of the container runtime, or several of which one answers, "
        "separated by commas; empty: the usual sockets of containerd and CRI-O",
        "driver_root": run.NODE["driver_root"],
    },
    "Devices": {
        "device_config_file": "device-config.yaml, which changes the built-in vendors; empty: "
        "unchanged",
        "node_config_file": "HAMi's config.json with settings by node; they override all others",
        "mig_strategy": "how existing MIG devices are offered: none, single (as cards) or "
        "mixed (as resources of their own)",
        "disable_health_checks": "XIDs that do not take a card out, separated by commas; all: "
        "every one",
        "enable_health_checks": "XIDs that do nevertheless, separated by commas",
        "quarantine": "time that a card stays out after its last critical error",
        "advertise_shares": "also write memory and compute of all cards into the node's status",
        "enable_get_preferred_allocation": "ask kubelet for the device ids of the card that the "
        "pod was granted, so that DCGM's metrics name the right pod",
    },
    "Binding": {
        "binding": "when a container gets its cards: auto, late (right before its start) or lock "
        "(the pod that the node's lock names)",
        "driver_injection": "how cards get into containers: auto, cdi (by NVIDIA's CDI spec) or "
        "runtime (by NVIDIA's runtime)",
        "grant_key_dir": "folder of the keys that verify grants: `public-current` and "
        "`public-previous`, of form v1 `current` and `previous`; empty: grants are not checked",
        "accept_grant_forms": flag_checks.GRANT_FORMS_HELP,
        "allow_unsigned_grants": "also start pods that HAMi's scheduler placed: their grants are "
        "not signed",
        "uncontrolled_namespaces": "namespaces in which CUDA_DISABLE_CONTROL=true turns the "
        "limits off, separated by commas",
        "pod_wait": "longest time that a container's start waits until its pod is known",
        "drain_timeout": "longest time that the agent goes on serving kubelet after SIGTERM, "
        "until kubelet has taken up every pod that is bound to the node; 0: none",
    },
    "Serving": {"metrics_bind_address": "where /metrics and health answer; empty: nowhere"},
    "The API server": run.API_SERVER,
    "Logs and traces": run.LOGS_AND_TRACES,
}
_CHOICES = {
    "mig_strategy": (("none", "single", "mixed"), "a strategy for MIG"),
    "binding": (("auto", "late", "lock"), "a way to bind"),
    "driver_injection": (("auto", "cdi", "runtime"), "a way into containers"),
}


def _choices(settings: Settings, failure: Failure) -> None:
    for field, (among, meaning) in _CHOICES.items():
        flag_checks.one_of(field, getattr(settings, field), among, failure, meaning=meaning)


TABLE = Table(
    Settings,
    description=_DESCRIPTION,
    help=_HELP,
    checks=(
        flag_checks.on_node,
        flag_checks.metrics_address,
        _choices,
        flag_checks.grant_forms,
        flag_checks.traces,
    ),
)


def main(arguments: Sequence[str], *, prog: str) -> int:
    resolved = flags.resolve(TABLE, arguments, os.environ, prog=prog)
    return run.run("hami.agent.main", resolved, fast=False)
