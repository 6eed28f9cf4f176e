"""`hami agent`: its flags, and the process.

The flags of `hami agent`: what each means, and what must hold between them.

`hami agent`: a GPU node's device plugin.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

from hami.agent.settings import Settings
from hami.cli import flag_checks, flags, run
from hami.cli.flag_values import Failure, Table

_DESCRIPTION = (
    "Offer a node's GPUs to kubelet in shares, and turn what the scheduler granted a pod into\n"
    "limits inside its containers. Runs once on every GPU node, as root."
)
_HELP = {
    "The node": {
        "node_name": run.NODE["node_name"],
        "kubelet_dir": "kubelet's folder, with device-plugins and pod-resources",
        "cdi_dir": "folder of CDI specs that come and go; the runtime must look there",
        "nvidia_cdi_dirs": "folders in which NVIDIA's own CDI specs are looked for, with commas",
        "hook_path": run.NODE["hook_path"],
        "state_dir": run.NODE["state_dir"],
        "run_dir": run.NODE["run_dir"],
        "runtime_endpoint": "CRI socket of the container runtime, or several of which one answers, "
        "with commas; empty: where containerd and CRI-O have theirs",
        "driver_root": run.NODE["driver_root"],
    },
    "Devices": {
        "device_config_file": "device-config.yaml, which changes the built-in vendors; empty: as "
        "they are",
        "node_config_file": "HAMi's config.json with settings by node; they go before all others",
        "mig_strategy": "what of MIG devices that are there is offered: none, single (as cards) or "
        "mixed (as resources of their own)",
        "disable_health_checks": "XIDs that say nothing about a card, with commas; all: every one",
        "enable_health_checks": "XIDs that count nevertheless",
        "quarantine": "how long a card stays out after its last critical error",
        "advertise_shares": "write memory and compute of all cards into the node's status, too",
        "enable_get_preferred_allocation": "ask kubelet for the ids of the card that the waiting "
        "pod was given, so that DCGM's metrics name the right pod",
    },
    "Binding": {
        "binding": "when a container gets its cards: auto, late (right before its start) or lock "
        "(the pod that the node's lock names)",
        "driver_injection": "how cards get into containers: auto, cdi (NVIDIA's spec is merged) or "
        "runtime (NVIDIA's runtime)",
        "grant_key_dir": "folder of the keys `current` and `previous` that sign grants; empty: "
        "grants are not checked",
        "allow_unsigned_grants": "let pods start that HAMi's scheduler placed: their grants are "
        "not signed",
        "uncontrolled_namespaces": "namespaces in which CUDA_DISABLE_CONTROL=true turns the "
        "limiter off, with commas",
        "pod_wait": "how long a container's start waits for its pod to be known",
        "evict_refused": "evict a pod whose start was refused three times within two minutes",
    },
    "Serving": {"metrics_bind_address": "where /metrics and health answer; empty: nowhere"},
    "The API server": run.API_SERVER,
    "Telling": run.TELLING,
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
        flag_checks.traces,
    ),
)


def main(arguments: Sequence[str], *, prog: str) -> int:
    resolved = flags.resolve(TABLE, arguments, os.environ, prog=prog)
    return run.run("hami.agent.main", resolved, fast=False)
