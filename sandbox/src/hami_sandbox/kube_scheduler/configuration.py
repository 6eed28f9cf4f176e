"""A KubeSchedulerConfiguration, as far as the stand-in uses it.

The file is the one that `hami scheduler config` writes for a real kube-scheduler, so the sandbox
tests what users install. Fields that are not known here are ignored; profiles count by their names
only.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from hami.vendors import config_file
from hami.vendors import config_file as config_errors
from hami.wire import errors as wire_errors
from hami.wire import text_values
from hami_sandbox.errors import SandboxError

DEFAULT_SCHEDULER = "default-scheduler"

_GROUP = "kubescheduler.config.k8s.io/"
_KIND = "KubeSchedulerConfiguration"
_REMEDY = "write the file with `hami scheduler config --kube-version 1.36`"


class Tls(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """TLS to an extender: its certificate authority, our certificate."""

    insecure: bool = False
    ca_file: str = ""
    cert_file: str = ""
    key_file: str = ""
    server_name: str = ""


class Managed(msgspec.Struct, frozen=True, rename="camel"):
    name: str
    ignored_by_scheduler: bool = False


class Extender(msgspec.Struct, frozen=True, kw_only=True):
    """One extender, with kube-scheduler's defaults."""

    url: str
    filter_verb: str = ""
    prioritize_verb: str = ""
    bind_verb: str = ""
    weight: int = 1
    node_cache_capable: bool = False
    ignorable: bool = False
    #: Seconds for one call.
    timeout: float = 5.0
    tls: Tls | None = None
    managed: tuple[Managed, ...] = ()


class Election(msgspec.Struct, frozen=True, kw_only=True):
    """The lease that is held while scheduling; times in seconds."""

    namespace: str
    name: str
    lease_duration: float
    renew_deadline: float
    retry_period: float


class Configuration(msgspec.Struct, frozen=True, kw_only=True):
    #: Empty: found as every Kubernetes client does.
    kubeconfig: str = ""
    qps: float = 0.0
    burst: int = 0
    #: Pods that name one of these are ours.
    schedulers: tuple[str, ...] = (DEFAULT_SCHEDULER,)
    extenders: tuple[Extender, ...] = ()
    #: None: no leader election.
    election: Election | None = None
    #: Seconds that a refused pod waits at least; it doubles with each refusal.
    first_backoff: float = 1.0
    longest_backoff: float = 10.0

    @property
    def ignored(self) -> frozenset[str]:
        """Resources that only the extenders count."""
        return frozenset(
            managed.name
            for extender in self.extenders
            for managed in extender.managed
            if managed.ignored_by_scheduler
        )


class _Profile(msgspec.Struct, frozen=True, rename="camel"):
    scheduler_name: str = DEFAULT_SCHEDULER


class _Extender(msgspec.Struct, frozen=True, rename="camel"):
    url_prefix: str = ""
    filter_verb: str = ""
    prioritize_verb: str = ""
    bind_verb: str = ""
    weight: int = 1
    node_cache_capable: bool = False
    ignorable: bool = False
    http_timeout: str = "5s"
    tls_config: Tls | None = None
    managed_resources: tuple[Managed, ...] | None = None


class _Election(msgspec.Struct, frozen=True, rename="camel"):
    leader_elect: bool = True
    resource_name: str = "kube-scheduler"
    resource_namespace: str = "kube-system"
    lease_duration: str = "15s"
    renew_deadline: str = "10s"
    retry_period: str = "2s"


class _Connection(msgspec.Struct, frozen=True):
    kubeconfig: str = ""
    qps: float = 50.0
    burst: int = 100


class _File(msgspec.Struct, frozen=True, rename="camel"):
    api_version: str = ""
    kind: str = ""
    profiles: tuple[_Profile, ...] | None = None
    extenders: tuple[_Extender, ...] | None = None
    leader_election: _Election = _Election()
    client_connection: _Connection = _Connection()
    pod_initial_backoff_seconds: float = 1.0
    pod_max_backoff_seconds: float = 10.0


def load(path: Path) -> Configuration:
    """Read the file of --config."""
    try:
        text = config_file.read(path, remedy=_REMEDY)
        return parse(text, source=str(path))
    except config_errors.ConfigError as error:
        raise SandboxError(error.source, f"{error.place} {error.rule}".strip(), error.remedy) from (
            error
        )


def parse(text: str, *, source: str) -> Configuration:
    data: Any = config_file.load(text, source=source)
    try:
        file = msgspec.convert(data, _File)
    except msgspec.ValidationError as error:
        raise SandboxError(source, f"is no {_KIND}: {error}", _REMEDY) from error
    if file.kind != _KIND or not file.api_version.startswith(_GROUP):
        rule = f"is {file.api_version!r} {file.kind!r}, not {_GROUP}v1 {_KIND}"
        raise SandboxError(source, rule, _REMEDY)
    try:
        return _configuration(file)
    except wire_errors.WireError as error:
        raise SandboxError(source, str(error), _REMEDY) from error


def _configuration(file: _File) -> Configuration:
    names = [profile.scheduler_name for profile in file.profiles or ()]
    connection = file.client_connection
    return Configuration(
        kubeconfig=connection.kubeconfig,
        qps=connection.qps,
        burst=connection.burst,
        # Pods without a schedulerName need a scheduler too, and the sandbox has no other.
        schedulers=tuple(dict.fromkeys([*names, DEFAULT_SCHEDULER])),
        extenders=tuple(_extender(extender) for extender in file.extenders or ()),
        election=_election(file.leader_election),
        first_backoff=file.pod_initial_backoff_seconds,
        longest_backoff=file.pod_max_backoff_seconds,
    )


def _extender(extender: _Extender) -> Extender:
    if not extender.url_prefix.startswith(("http://", "https://")):
        rule = "is no address; it begins with http:// or https://"
        raise wire_errors.WireError("extenders.urlPrefix", extender.url_prefix, rule)
    return Extender(
        url=extender.url_prefix.rstrip("/"),
        filter_verb=extender.filter_verb,
        prioritize_verb=extender.prioritize_verb,
        bind_verb=extender.bind_verb,
        weight=extender.weight,
        node_cache_capable=extender.node_cache_capable,
        ignorable=extender.ignorable,
        timeout=text_values.parse_duration(extender.http_timeout, what="extenders.httpTimeout"),
        tls=extender.tls_config,
        managed=extender.managed_resources or (),
    )


def _election(election: _Election) -> Election | None:
    if not election.leader_elect:
        return None
    what = "leaderElection"
    return Election(
        namespace=election.resource_namespace,
        name=election.resource_name,
        lease_duration=text_values.parse_duration(election.lease_duration, what=what),
        renew_deadline=text_values.parse_duration(election.renew_deadline, what=what),
        retry_period=text_values.parse_duration(election.retry_period, what=what),
    )
