"""`hami scheduler`: its flags, their help and rules, and the process."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence

from hami.admission.mig_fallback import End
from hami.cli import flag_checks, flags, run
from hami.cli.flag_values import Failure, Table
from hami.placement import policy
from hami.scheduler.settings import Settings
from hami.wire import errors as wire_errors

_NAME_PART = r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?"
_LABEL_VALUE = re.compile(f"({_NAME_PART})?")
_SUBDOMAIN = r"[a-z0-9]([-.a-z0-9]{0,251}[a-z0-9])?"
_LABEL_KEY = re.compile(f"({_SUBDOMAIN}/)?{_NAME_PART}")
_OBJECT_NAME = re.compile(_SUBDOMAIN)
#: client-go adds up to this factor to a period and requires a longer deadline.
_JITTER = 1.2
#: Seconds.
_SHORTEST_GRACE = 10.0

_DESCRIPTION = (
    "Place pods on shared GPUs: answers a kube-scheduler's questions on loopback, and the API\n"
    "server's about new pods. `{prog} config` writes the configuration of that kube-scheduler."
)
_HELP = {
    "Serving": {
        "http_bind": "where /filter, /bind, /explain, /webhook and health answer; only a sibling "
        "on loopback, or holders of a client certificate, may call the first three",
        "cert_file": "certificate (PEM) to serve HTTPS with; read again when it changes",
        "key_file": "its key (PEM)",
        "client_ca_file": "CA (PEM) whose clients may schedule from other machines; empty: none",
        "metrics_bind_address": "where /metrics answers; empty: nowhere",
        "legacy_metrics": "write HAMi's old metric names beside the new ones",
        "card_metrics": "write metrics of cards and containers; without them those of nodes, "
        "namespaces and the cluster remain",
        "container_metrics_limit": "write metrics of containers while they have at most so many "
        "shares; the monitors of the nodes always write them",
        "profiling": "answer below /debug, to callers that may schedule",
        "shutdown_delay": "time that new requests are still answered after SIGTERM",
        "drain_timeout": "longest time for requests under way to end after that",
    },
    "Scheduling": {
        "scheduler_name": "the kube-scheduler profile whose pods are ours, and the source of our "
        "events",
        "node_scheduler_policy": "how nodes are chosen for pods that name no policy: binpack or "
        "spread",
        "gpu_scheduler_policy": "how cards are chosen for pods that name no policy: binpack, "
        "spread, mutex, numa, topology-aware, or several, separated by commas",
        "node_label_selector": "use only nodes with these labels, as k=v,k2=v2; empty: all",
        "device_config_file": "device-config.yaml, which changes the built-in vendors; empty: "
        "unchanged",
        "enable_iluvatar": "handle pods that ask for Iluvatar's cards",
        "grant_key_dir": "folder of the keys that sign grants: `signing-current` and "
        "`signing-previous`, of form v1 `current` and `previous`; empty: grants are not signed",
        "accept_grant_forms": flag_checks.GRANT_FORMS_HELP,
        "allow_unsigned_grants": "HAMi's scheduler places pods, too: its grants, which are not "
        "signed, are not reported; as for the agents",
        "reservation_timeout": "longest time that cards are held for a pod that is not bound: one "
        "that waits for volumes or claims; others are held for 30 s, members of a pod group 6m",
        "unresolvable_nodes": "answer refused nodes as FailedAndUnresolvableNodes, so that "
        "kube-scheduler evicts no pod there; false for kube-scheduler before 1.21",
        "filter_budget": "longest time that /filter waits for its caches before it answers an "
        "error",
    },
    "Admission": {
        "force_overwrite_default_scheduler": "take over pods that name default-scheduler",
        "hook_path": "folder above vgpu that the node agent mounts into containers; pods may not "
        "mount anything there",
        "high_priority_namespaces": "namespaces that may use the highest priority, 0, separated by "
        "commas; *: all",
        "high_priority_classes": "PriorityClasses whose pods may, separated by commas",
        "mig_fallback": "replace MIG profiles that the cluster does not have: type (no node has "
        "it), available (or none is free), off",
        "mig_fallback_gpu": "what comes after the smallest profile: share (of the profile's size) "
        "or whole",
        "mig_fallback_file": "YAML file of chains of profiles; empty: the built-in ones",
    },
    "Evictions": {
        "overuse": "what becomes of a pod that has more of a card than it was given, by the "
        "driver's account: report (metrics and events) or evict",
        "overuse_grace": "time that it goes on before the pod is evicted",
        "overuse_exempt_namespaces": "namespaces whose pods are reported only, separated by commas",
        "evict_refused": "evict a pod whose start its node's agent refused three times within two "
        "minutes, so that it is scheduled again",
    },
    "Nodes with a lock": {
        "node_lock_timeout": "time since it was first seen after which a lock that names no pod is "
        "removed",
        "node_lock_retry_timeout": "longest time that a member of a pod group waits for a lock; 0: "
        "it does not wait",
    },
    "The API server": run.API_SERVER,
    "Leadership": {
        "leader_elect": "several replicas run: schedule only while the lease is held",
        "leader_elect_resource_name": "name of the sibling kube-scheduler's lease",
        "leader_elect_resource_namespace": "its namespace",
        "leader_elect_own_lease": "hold that lease itself: no kube-scheduler runs in the same pod",
        "leader_elect_lease_duration": "time that a lease is valid without renewal; as in the "
        "kube-scheduler's configuration, like the next two",
        "leader_elect_renew_deadline": "time after its renewal in which the holder still acts",
        "leader_elect_retry_period": "time between two renewals",
        "pod_name": "this pod, which gets a label with its role; empty: no label",
        "pod_namespace": "its namespace",
    },
    "Logs and traces": run.LOGS_AND_TRACES,
}


def _client_ca(settings: Settings, failure: Failure) -> None:
    if settings.client_ca_file and not settings.cert_file:
        rule = "needs HTTPS: clients show certificates over it only"
        raise failure("client_ca_file", rule, "add --cert_file and --key_file")


def _scheduling(settings: Settings, failure: Failure) -> None:
    if not _OBJECT_NAME.fullmatch(settings.scheduler_name):
        rule = "is no name that a pod's schedulerName can have"
        raise failure("scheduler_name", rule, "write small letters, digits, - and . only")
    try:
        policy.parse_node_policy(settings.node_scheduler_policy, "")
    except wire_errors.WireError as error:
        raise failure("node_scheduler_policy", error.rule, error.remedy) from error
    try:
        policy.parse_gpu_policy(settings.gpu_scheduler_policy, "")
    except wire_errors.WireError as error:
        remedy = f"{error.remedy}, or several with commas"
        raise failure("gpu_scheduler_policy", error.rule, remedy) from error


def _selector(settings: Settings, failure: Failure) -> None:
    seen: set[str] = set()
    for term in settings.node_label_selector.split(",") if settings.node_label_selector else ():
        key, equals, value = (part.strip() for part in term.partition("="))
        if not (equals and _LABEL_KEY.fullmatch(key) and _LABEL_VALUE.fullmatch(value)):
            rule = f"holds {wire_errors.shorten(term)}, which is not label=value"
            raise failure("node_label_selector", rule, "write for example gpu=on,zone=a")
        if key in seen:
            rule = f"names {wire_errors.shorten(key)} twice, so no node would do"
            raise failure("node_label_selector", rule, "name each label once")
        seen.add(key)


def _leadership(settings: Settings, failure: Failure) -> None:
    if settings.leader_elect_own_lease and not settings.leader_elect:
        rule = "needs --leader-elect: without it no lease is used"
        raise failure("leader_elect_own_lease", rule, "add --leader-elect, or remove this")
    if settings.leader_elect:
        for field in ("leader_elect_resource_name", "leader_elect_resource_namespace"):
            if not getattr(settings, field):
                remedy = "copy it from leaderElection of the kube-scheduler's configuration"
                raise failure(field, "must name the lease, as --leader-elect is given", remedy)
    if settings.leader_elect_renew_deadline >= settings.leader_elect_lease_duration:
        rule = "must be less than --leader-elect-lease-duration, or two could lead at once"
        raise failure("leader_elect_renew_deadline", rule, "write for example 6s and 8s")
    if settings.leader_elect_retry_period * _JITTER >= settings.leader_elect_renew_deadline:
        rule = f"times {_JITTER} must be less than --leader-elect-renew-deadline"
        raise failure("leader_elect_retry_period", rule, "write for example 1s and 6s")


def _evictions(settings: Settings, failure: Failure) -> None:
    meaning = "a way to handle overuse of cards"
    flag_checks.one_of("overuse", settings.overuse, ("report", "evict"), failure, meaning=meaning)
    if settings.overuse_grace < _SHORTEST_GRACE:
        rule = f"is less than {_SHORTEST_GRACE:g}s: monitors look every five seconds"
        raise failure("overuse_grace", rule, "write for example 2m")


def _admission(settings: Settings, failure: Failure) -> None:
    modes = flag_checks.fallback_modes(off=True)
    meaning = "a way to replace MIG profiles"
    flag_checks.one_of("mig_fallback", settings.mig_fallback, modes, failure, meaning=meaning)
    meaning = "an end of a chain of MIG profiles"
    flag_checks.one_of(
        "mig_fallback_gpu", settings.mig_fallback_gpu, tuple(End), failure, meaning=meaning
    )
    if not settings.hook_path.startswith("/"):
        raise failure("hook_path", "does not begin with /", "write a path such as /usr/local")


TABLE = Table(
    Settings,
    description=_DESCRIPTION,
    help=_HELP,
    checks=(
        flag_checks.addresses,
        flag_checks.certificates,
        _client_ca,
        _scheduling,
        _selector,
        _evictions,
        _leadership,
        _admission,
        flag_checks.grant_forms,
        flag_checks.traces,
    ),
)


def main(arguments: Sequence[str], *, prog: str) -> int:
    resolved = flags.resolve(TABLE, arguments, os.environ, prog=prog)
    return run.run("hami.scheduler.main", resolved)
