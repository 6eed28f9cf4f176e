"""What must hold between and within settings, checked once, before anything starts.

Each message names the flag (or the variable or key that the value came from), the value, the rule
and the remedy. Whether files exist and addresses are free shows when they are used.
"""

from __future__ import annotations

import re
import urllib.parse
from collections.abc import Callable, Mapping

from hami.cli import errors, flag_table
from hami.cli.flag_table import Kind
from hami.extender.settings import Settings
from hami.placement import policy
from hami.serving import bind_address
from hami.serving import errors as serving_errors
from hami.wire import errors as wire_errors

_NAME_PART = r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?"
_LABEL_VALUE = re.compile(f"({_NAME_PART})?")
_SUBDOMAIN = r"[a-z0-9]([-.a-z0-9]{0,251}[a-z0-9])?"
_LABEL_KEY = re.compile(f"({_SUBDOMAIN}/)?{_NAME_PART}")
_OBJECT_NAME = re.compile(_SUBDOMAIN)

#: 0 would mean never, or at once and always; where it means something, it is not here.
_POSITIVE = frozenset(
    (
        "reservation_timeout",
        "filter_budget",
        "node_lock_timeout",
        "resync_interval",
        "leader_elect_lease_duration",
        "leader_elect_renew_deadline",
        "leader_elect_retry_period",
    )
)
#: client-go adds so much to a period at most, and wants the deadline beyond it.
_JITTER = 1.2

Failure = Callable[[str, str, str], errors.UsageError]
"""Builds the error about a field from its rule and remedy."""


def check(settings: Settings, origins: Mapping[str, str]) -> None:
    """Raise UsageError for the first rule broken; `origins` says where each field came from."""

    def failure(field: str, rule: str, remedy: str) -> errors.UsageError:
        spelling = flag_table.flags()[field.replace("_", "-")].spelling
        origin = origins.get(field, f"--{spelling}")
        return errors.usage(origin, getattr(settings, field), rule, remedy)

    for rule in (_amounts, _addresses, _certificates, _scheduling, _selector, _leadership, _traces):
        rule(settings, failure)


def _amounts(settings: Settings, failure: Failure) -> None:
    for flag in flag_table.flags().values():
        if flag.kind in (Kind.TEXT, Kind.SWITCH):
            continue
        value = getattr(settings, flag.field)
        if value < 0:
            remedy = "write 0 for no limit" if flag.field.startswith("kube") else "write 0 or more"
            raise failure(flag.field, "is negative", remedy)
        if value == 0 and flag.field in _POSITIVE:
            raise failure(flag.field, "must be more than 0", "write for example 10s")


def _addresses(settings: Settings, failure: Failure) -> None:
    host, port = _address(settings, "http_bind", failure)
    if not settings.metrics_bind_address:
        return
    metrics_host, metrics_port = _address(settings, "metrics_bind_address", failure)
    same_host = metrics_host == host or not (metrics_host and host)
    if port and port == metrics_port and same_host:
        raise failure("metrics_bind_address", "is where --http_bind listens", "change the port")


def _address(settings: Settings, field: str, failure: Failure) -> tuple[str, int]:
    try:
        return bind_address.parse(getattr(settings, field))
    except serving_errors.ServingError as error:
        remedy = "write HOST:PORT, as in :9395, 127.0.0.1:8080 or [::1]:443"
        raise failure(field, "is no address to listen on", remedy) from error


def _certificates(settings: Settings, failure: Failure) -> None:
    for given, missing in (("cert_file", "key_file"), ("key_file", "cert_file")):
        if getattr(settings, given) and not getattr(settings, missing):
            raise failure(missing, f"must be given, as --{given} is", f"add --{missing}=FILE")
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
        rule = "needs --leader-elect: without it nobody asks for a lease"
        raise failure("leader_elect_own_lease", rule, "add --leader-elect, or remove this")
    if settings.leader_elect:
        for field in ("leader_elect_resource_name", "leader_elect_resource_namespace"):
            if not getattr(settings, field):
                remedy = "write what leaderElection of the kube-scheduler's configuration says"
                raise failure(field, "must say which lease, as --leader-elect is given", remedy)
    if settings.leader_elect_renew_deadline >= settings.leader_elect_lease_duration:
        rule = "must be less than --leader-elect-lease-duration, or two could lead at once"
        raise failure("leader_elect_renew_deadline", rule, "write for example 6s and 8s")
    if settings.leader_elect_retry_period * _JITTER >= settings.leader_elect_renew_deadline:
        rule = f"times {_JITTER} must be less than --leader-elect-renew-deadline"
        raise failure("leader_elect_retry_period", rule, "write for example 1s and 6s")


def _traces(settings: Settings, failure: Failure) -> None:
    if not settings.otlp_endpoint:
        return
    try:
        url = urllib.parse.urlsplit(settings.otlp_endpoint)
    except ValueError:
        url = urllib.parse.urlsplit("")
    if url.scheme not in ("http", "https") or not url.hostname:
        remedy = "write for example http://collector:4318"
        raise failure("otlp_endpoint", "is no http or https address", remedy)
