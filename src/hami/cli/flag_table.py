"""Every setting of the scheduler as one row: flag, environment, key in the file, meaning.

The rows are made from the fields of `hami.extender.settings.Settings`; what a field cannot say for
itself (the help, HAMi's spelling, names of variables that others set) stands here, in the groups
of that struct. `hami.cli.flags` reads all three sources through these rows.
"""

from __future__ import annotations

import enum
import functools
from collections.abc import Iterator, Mapping

import msgspec

from hami.extender.settings import Settings


class Kind(enum.Enum):
    """What a value is, as help shows it."""

    TEXT = "TEXT"
    SWITCH = "true|false"
    WHOLE = "NUMBER"
    NUMBER = "AMOUNT"
    #: In seconds once read; written as Go does.
    DURATION = "DURATION"
    #: A duration for which a bare number of seconds will do: HAMi has it that way.
    SECONDS = "SECONDS"


class Flag(msgspec.Struct, frozen=True):
    """One setting, and the names under which it can be given."""

    field: str
    group: str
    help: str
    kind: Kind
    default: str | bool | int | float
    #: As HAMi writes it, without dashes in front.
    spelling: str
    #: The first that is set counts.
    environment: tuple[str, ...]

    @property
    def key(self) -> str:
        """The name with `-` throughout: in the file, and to compare by."""
        return self.field.replace("_", "-")


Source = Iterator[tuple[Flag, str, object]]
"""The settings that a source gives: row, name in errors, value as it came."""

#: HAMi writes these with underscores.
_UNDERSCORED = frozenset(("http_bind", "cert_file", "key_file"))

_KINDS = {"kube_qps": Kind.NUMBER, "kube_timeout": Kind.SECONDS}
_KIND_OF = {"str": Kind.TEXT, "bool": Kind.SWITCH, "int": Kind.WHOLE, "float": Kind.DURATION}

#: Variables that are set for other reasons too, or that HAMi reads.
_MORE_ENVIRONMENT = {
    "kubeconfig": "KUBECONFIG",
    "node_lock_timeout": "HAMI_NODELOCK_EXPIRE",
    "pod_name": "POD_NAME",
    "pod_namespace": "POD_NAMESPACE",
}

HELP: Mapping[str, Mapping[str, str]] = {
    "Serving": {
        "http_bind": "where /filter, /bind, /explain and health answer; only a sibling on "
        "loopback, or holders of a client certificate, may call the first three",
        "cert_file": "certificate (PEM) to serve HTTPS with; read again when it changes",
        "key_file": "its key (PEM)",
        "client_ca_file": "CA (PEM) whose clients may schedule from elsewhere; empty: nobody",
        "metrics_bind_address": "where /metrics answers; empty: nowhere",
        "legacy_metrics": "write HAMi's old metric names beside the new ones",
        "profiling": "answer below /debug, to those who may schedule",
        "drain_timeout": "how long requests under way may take to end after SIGTERM",
    },
    "Scheduling": {
        "scheduler_name": "the kube-scheduler profile whose pods are ours, and the source of our "
        "events",
        "node_scheduler_policy": "how nodes are chosen for pods that do not say: binpack or spread",
        "gpu_scheduler_policy": "how cards are chosen for pods that do not say: binpack, spread, "
        "mutex, numa, topology-aware, or several with commas",
        "node_label_selector": "know only nodes with these labels, as k=v,k2=v2; empty: all",
        "device_config_file": "device-config.yaml, which changes the built-in vendors; empty: as "
        "they are",
        "grant_key_dir": "folder of the keys `current` and `previous` that sign grants; empty: "
        "grants are not signed",
        "reservation_timeout": "how long a place is kept for a pod that nobody binds",
        "filter_budget": "how long /filter may wait for caches before it answers an error",
        "force_overwrite_default_scheduler": "take over pods that name default-scheduler; read by "
        "admission",
    },
    "Nodes with a lock": {
        "node_lock_timeout": "age at which a lock is looked at; one without a living owner goes",
        "node_lock_retry_timeout": "how long a member of a pod group waits for a lock; 0: not at "
        "all",
    },
    "The API server": {
        "kubeconfig": "file that says where the API server is; empty: the pod's service account, "
        "then ~/.kube/config",
        "kube_qps": "requests per second to it; 0: without limit",
        "kube_burst": "requests at once to it; 0: without limit",
        "kube_timeout": "how long one request may take; 0: 30 seconds",
        "resync_interval": "time between two comparisons of the caches with it",
    },
    "Leadership": {
        "leader_elect": "several replicas run: schedule only while the lease is held",
        "leader_elect_resource_name": "name of the sibling kube-scheduler's lease",
        "leader_elect_resource_namespace": "its namespace",
        "leader_elect_own_lease": "hold that lease ourselves: no kube-scheduler runs beside us",
        "leader_elect_lease_duration": "how long a lease lives without being renewed; as in the "
        "kube-scheduler's configuration, like the next two",
        "leader_elect_renew_deadline": "how long after its renewal we still act on it",
        "leader_elect_retry_period": "time between two renewals",
        "pod_name": "this pod, which gets a label with its role; empty: no label",
        "pod_namespace": "its namespace",
    },
    "Telling": {
        "debug": "log every decision; klog's -v=4 and above do the same",
        "otlp_endpoint": "address of an OpenTelemetry collector (OTLP over HTTP); empty: no traces",
    },
}


@functools.cache
def flags() -> Mapping[str, Flag]:
    """Return the rows by key, in the order of the help."""
    fields = {field.name: field for field in msgspec.structs.fields(Settings)}
    rows = (
        _row(fields[name], group=group, text=text)
        for group, texts in HELP.items()
        for name, text in texts.items()
    )
    return {row.key: row for row in rows}


def _row(field: msgspec.structs.FieldInfo, *, group: str, text: str) -> Flag:
    name = field.name
    more = _MORE_ENVIRONMENT.get(name)
    return Flag(
        field=name,
        group=group,
        help=text,
        kind=_KINDS.get(name) or _KIND_OF[field.type.__name__],
        default=field.default,
        spelling=name if name in _UNDERSCORED else name.replace("_", "-"),
        environment=(f"HAMI_{name.upper()}", *((more,) if more else ())),
    )
