"""Rules within and between settings, checked once before the process starts.

Each message names the flag (or the variable or key that the value came from), the value, the rule
and the remedy. That files exist and addresses are free is not checked here but when they are used.
These are the rules that several processes have; those of one alone are beside its flags.
"""

from __future__ import annotations

import re
import urllib.parse
from collections.abc import Mapping
from typing import Any, Protocol

from hami.admission.mig_fallback import Mode
from hami.cli import errors
from hami.cli.flag_values import Failure, Kind, S, Table
from hami.serving import addresses as serving_addresses
from hami.serving import lifetime as serving_errors
from hami.wire import grant, text_values

_NODE_NAME = re.compile(r"[a-z0-9]([-.a-z0-9]{0,251}[a-z0-9])?")
#: Of the processes on a node.
_PATHS = (
    *("kubelet_dir", "cdi_dir", "hook_path", "state_dir", "run_dir", "proc_dir", "driver_root"),
    *("device_config_file", "node_config_file", "grant_key_dir"),
)

#: Settings for which 0 has no meaning.
_POSITIVE = frozenset(
    (
        "reservation_timeout",
        "filter_budget",
        "node_lock_timeout",
        "resync_interval",
        "leader_elect_lease_duration",
        "leader_elect_renew_deadline",
        "leader_elect_retry_period",
        "pod_wait",
        "hami_resync_interval",
    )
)

GRANT_FORMS_HELP = (
    "forms of signed grants that count, if their keys are in that folder: v3, or v1,v3 while pods "
    "whose grant is of form v1 run"
)


class Traced(Protocol):
    @property
    def otlp_endpoint(self) -> str: ...


class Measured(Protocol):
    @property
    def metrics_bind_address(self) -> str: ...


class Serving(Traced, Measured, Protocol):
    """Settings of every process that serves."""

    @property
    def http_bind(self) -> str: ...
    @property
    def cert_file(self) -> str: ...
    @property
    def key_file(self) -> str: ...


class Granting(Protocol):
    """Settings of every process that signs or verifies grants."""

    @property
    def accept_grant_forms(self) -> str: ...


class OnNode(Measured, Protocol):
    """Settings of every process on a GPU node."""

    @property
    def node_name(self) -> str: ...


def check(table: Table[S], settings: S, origins: Mapping[str, str]) -> None:
    """Raise UsageError for the first rule broken; `origins` has the source of each field."""

    def failure(field: str, rule: str, remedy: str) -> errors.UsageError:
        spelling = table.flags[field.replace("_", "-")].spelling
        origin = origins.get(field, f"--{spelling}")
        return errors.usage(origin, getattr(settings, field), rule, remedy)

    _amounts(table, settings, failure)
    for rule in table.checks:
        rule(settings, failure)


def _amounts(table: Table[Any], settings: Any, failure: Failure) -> None:
    for flag in table.flags.values():
        if flag.kind in (Kind.TEXT, Kind.SWITCH):
            continue
        value = getattr(settings, flag.field)
        if value < 0:
            remedy = "write 0 for no limit" if flag.field.startswith("kube") else "write 0 or more"
            raise failure(flag.field, "is negative", remedy)
        if value == 0 and flag.field in _POSITIVE:
            raise failure(flag.field, "must be more than 0", "write for example 10s")


def addresses(settings: Serving, failure: Failure) -> None:
    host, port = _address(settings, "http_bind", failure)
    if not settings.metrics_bind_address:
        return
    metrics_host, metrics_port = _address(settings, "metrics_bind_address", failure)
    same_host = metrics_host == host or not (metrics_host and host)
    if port and port == metrics_port and same_host:
        raise failure("metrics_bind_address", "is where --http_bind listens", "change the port")


def metrics_address(settings: Measured, failure: Failure) -> None:
    if settings.metrics_bind_address:
        _address(settings, "metrics_bind_address", failure)


def on_node(settings: OnNode, failure: Failure) -> None:
    """Check the node's name and the paths, which must be absolute."""
    if not _NODE_NAME.fullmatch(settings.node_name):
        rule = "is no node's name" if settings.node_name else "is empty"
        remedy = "set NODE_NAME from spec.nodeName, as the chart does"
        raise failure("node_name", rule, remedy)
    for field in _PATHS:
        path = getattr(settings, field, "")
        if path and not path.startswith("/"):
            raise failure(field, "does not begin with /", "write an absolute path")


def _address(settings: Measured, field: str, failure: Failure) -> tuple[str, int]:
    try:
        return serving_addresses.parse(getattr(settings, field))
    except serving_errors.ServingError as error:
        remedy = "write HOST:PORT, as in :9395, 127.0.0.1:8080 or [::1]:443"
        raise failure(field, "is no address to listen on", remedy) from error


def certificates(settings: Serving, failure: Failure) -> None:
    for given, missing in (("cert_file", "key_file"), ("key_file", "cert_file")):
        if getattr(settings, given) and not getattr(settings, missing):
            raise failure(missing, f"must be given, as --{given} is", f"add --{missing}=FILE")


def traces(settings: Traced, failure: Failure) -> None:
    if not settings.otlp_endpoint:
        return
    try:
        url = urllib.parse.urlsplit(settings.otlp_endpoint)
    except ValueError:
        url = urllib.parse.urlsplit("")
    if url.scheme not in ("http", "https") or not url.hostname:
        remedy = "write for example http://collector:4318"
        raise failure("otlp_endpoint", "is no http or https address", remedy)


def grant_forms(settings: Granting, failure: Failure) -> None:
    given = text_values.comma_list(settings.accept_grant_forms)
    if not given or not set(given) <= set(grant.FORMS):
        remedy = "write v3, or v1,v3 while pods with older grants run"
        raise failure("accept_grant_forms", "is no list of forms of grants", remedy)


def one_of(
    field: str, value: str, among: tuple[str, ...], failure: Failure, *, meaning: str
) -> None:
    if value not in among:
        raise failure(field, f"is not {meaning}", f"write one of {', '.join(among)}")


def fallback_modes(*, off: bool) -> tuple[str, ...]:
    """Return the values of --mig-fallback."""
    return tuple(mode for mode in Mode if off or mode is not Mode.OFF)
