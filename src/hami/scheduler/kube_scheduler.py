"""The kube-scheduler beside us: its configuration, its version.

The format of the configuration changed five times, and a field that one version demands another
refuses; here each version gets what it reads. The text carries its reasons as comments: a person
who edits it does not see this file. Before 1.19 extenders were configured in a second file, the
Policy. The formats are those of the types in k8s.io/kube-scheduler, from 0.16 to 0.36.

kube-scheduler watches every change of a node since its queueing hints, which are on since 1.32. An
older one first checks whether the node offers all that an unschedulable pod asks for, and counts
our shares of memory and compute as missing there whatever its configuration says; it watches
changes of the pod itself, though. The API server's version is taken for kube-scheduler's: they are
released together and at most one apart.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Iterable, Iterator, Mapping

import msgspec

from hami.kube import errors
from hami.kube.client import Client
from hami.scheduler.settings import Settings
from hami.vendors.table import Vendor
from hami.wire import codec
from hami.wire import errors as wire_errors

_log = logging.getLogger(__name__)

CONFIG_FILE = "kube-scheduler.yaml"
POLICY_FILE = "policy.yaml"

#: Before, the file could not name the leader's lease.
OLDEST = (1, 16)

_API_VERSIONS = (
    ((1, 25), "kubescheduler.config.k8s.io/v1"),
    ((1, 23), "kubescheduler.config.k8s.io/v1beta3"),
    ((1, 22), "kubescheduler.config.k8s.io/v1beta2"),
    ((1, 19), "kubescheduler.config.k8s.io/v1beta1"),
    (OLDEST, "kubescheduler.config.k8s.io/v1alpha1"),
)
_EXTENDERS_IN_CONFIG = (1, 19)
_BACKOFF_IN_CONFIG = (1, 17)

_VERSION = re.compile(r"v?([0-9]{1,3})\.([0-9]{1,3})([^0-9].*)?")
#: Words that YAML takes for something else, and all that is no plain word, are quoted.
_PLAIN = re.compile(
    r"(?!(?i:true|false|yes|no|on|off|null|y|n)$)[A-Za-z][-A-Za-z0-9_./]*|/[-\w./]*"
)

_DEFAULTS = Settings()


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """Values that differ between installations."""

    #: Every resource that makes a pod ours.
    managed_resources: tuple[str, ...]
    #: Where `hami scheduler` answers, without a verb.
    url: str = f"http://{_DEFAULTS.http_bind}"
    #: The profile that pods name.
    scheduler_name: str = _DEFAULTS.scheduler_name
    #: For HTTPS. No CA means that the certificate is not checked.
    ca_file: str = ""
    client_cert_file: str = ""
    client_key_file: str = ""
    server_name: str = ""
    #: Empty: the pod's service account.
    kubeconfig: str = ""
    leader_elect: bool = True
    lease_name: str = "hami-scheduler"
    lease_namespace: str = "kube-system"
    #: Seconds; `hami scheduler` must be configured with the same three.
    lease_duration: float = _DEFAULTS.leader_elect_lease_duration
    renew_deadline: float = _DEFAULTS.leader_elect_renew_deadline
    retry_period: float = _DEFAULTS.leader_elect_retry_period
    #: Seconds that a pod may wait in the queue of a node with a lock.
    http_timeout: float = 600.0
    qps: int = 1000
    burst: int = 2000
    #: The folder in which the kube-scheduler finds these files; only the Policy's path needs it.
    folder: str = "/etc/kube-scheduler"


def managed_resources(vendors: Iterable[Vendor]) -> tuple[str, ...]:
    """Return every resource of the vendors that a pod can ask for."""
    return tuple(name for vendor in vendors for name in vendor.resources.named())


def parse_version(text: str) -> tuple[int, int]:
    """Read a version as `kubectl version` prints it: v1.30.14, 1.27.3-eks-a5565ad, 1.24+."""
    found = _VERSION.fullmatch(text.strip())
    version = (int(found[1]), int(found[2])) if found else (0, 0)
    if version[0] != 1:
        remedy = "write the server's version as `kubectl version` prints it, for example 1.30"
        raise wire_errors.WireError(
            "Kubernetes version", text, "is no version of Kubernetes 1", remedy
        )
    if version < OLDEST:
        oldest = ".".join(map(str, OLDEST))
        rule = f"is older than {oldest}, the oldest whose kube-scheduler can be configured for us"
        raise wire_errors.WireError("Kubernetes version", text, rule, f"use {oldest} or newer")
    return version


def files(version: str, options: Options) -> dict[str, str]:
    """Return the text of each file by its name; the one for --config is the first."""
    number = parse_version(version)
    made = {CONFIG_FILE: _text(_configuration(number, options))}
    if number < _EXTENDERS_IN_CONFIG:
        made[POLICY_FILE] = _text(_policy(number, options))
    return made


def render(version: str, options: Options) -> str:
    """Return all files as one text; several are separated, each after its name."""
    made = files(version, options)
    if len(made) == 1:
        return made[CONFIG_FILE]
    return "---\n".join(f"# File {name}\n{text}" for name, text in made.items())


def _configuration(version: tuple[int, int], options: Options) -> Iterator[str]:
    api_version = next(name for since, name in _API_VERSIONS if version >= since)
    yield from _head(version, f"kube-scheduler --config={options.folder}/{CONFIG_FILE}")
    yield f"apiVersion: {api_version}"
    yield "kind: KubeSchedulerConfiguration"
    yield "# Pods that say schedulerName: <this> are placed by this kube-scheduler."
    if version < _EXTENDERS_IN_CONFIG:
        yield f"schedulerName: {_scalar(options.scheduler_name)}"
        yield f"# This version reads extenders from a Policy only; it is in {POLICY_FILE}."
        yield "algorithmSource:"
        yield "  policy:"
        yield "    file:"
        yield f"      path: {_scalar(f'{options.folder}/{POLICY_FILE}')}"
    else:
        yield "profiles:"
        yield f"- schedulerName: {_scalar(options.scheduler_name)}"
    yield "# All nodes that fit reach hami. Else a large cluster stops at a tenth of its nodes, and"
    yield "# the best cards may be on the others."
    yield "percentageOfNodesToScore: 100"
    if version >= _BACKOFF_IN_CONFIG:
        yield "# A pod that waits for a card is tried again soon after one is freed, not 10 s"
        yield "# later."
        yield "podInitialBackoffSeconds: 1"
        yield "podMaxBackoffSeconds: 2"
    yield "# hami follows this lease: it binds only while its kube-scheduler holds it. Give it the"
    yield "# same name, namespace and times (--leader-elect-...). Short, so that a lost leader is"
    yield "# replaced within 15 s."
    yield "leaderElection:"
    yield f"  leaderElect: {_scalar(options.leader_elect)}"
    yield "  resourceLock: leases"
    yield f"  resourceName: {_scalar(options.lease_name)}"
    yield f"  resourceNamespace: {_scalar(options.lease_namespace)}"
    yield f"  leaseDuration: {_seconds(options.lease_duration)}"
    yield f"  renewDeadline: {_seconds(options.renew_deadline)}"
    yield f"  retryPeriod: {_seconds(options.retry_period)}"
    yield "# The defaults (50 and 100) would hold up a burst of pods; the API server's own fairness"
    yield "# protects it better."
    yield "clientConnection:"
    if options.kubeconfig:
        yield f"  kubeconfig: {_scalar(options.kubeconfig)}"
    yield f"  qps: {options.qps}"
    yield f"  burst: {options.burst}"
    if version >= _EXTENDERS_IN_CONFIG:
        timeout = _seconds(options.http_timeout)
        yield from _extender(options, https="enableHTTPS", timeout=timeout)


def _policy(version: tuple[int, int], options: Options) -> Iterator[str]:
    yield from _head(version, f"algorithmSource.policy.file of {CONFIG_FILE}")
    yield "# Without `predicates` and `priorities` the defaults of kube-scheduler hold."
    yield "apiVersion: v1"
    yield "kind: Policy"
    # The Policy's types are older: other letters in enableHttps, and Go's nanoseconds.
    nanoseconds = f"{round(options.http_timeout * 10**9)} # {_seconds(options.http_timeout)}"
    yield from _extender(options, https="enableHttps", timeout=nanoseconds)


def _head(version: tuple[int, int], reader: str) -> Iterator[str]:
    yield f"# Made by `hami scheduler config --kube-version {version[0]}.{version[1]}`."
    yield f"# Read by: {reader}"


def _extender(options: Options, *, https: str, timeout: str) -> Iterator[str]:
    yield "extenders:"
    yield f"- urlPrefix: {_scalar(options.url)}"
    if options.url.startswith("https:"):
        yield f"  {https}: true"
        yield from _tls(options)
    yield "  filterVerb: filter"
    yield "  # hami binds: the pod's cards and its node are written in one request."
    yield "  bindVerb: bind"
    yield "  # hami vetoes evictions on nodes where the pod's cards would not fit afterwards."
    yield "  preemptVerb: preempt"
    yield "  weight: 1"
    yield "  # hami knows the nodes; sending all of them each time would cost more than deciding."
    yield "  nodeCacheCapable: true"
    yield "  # For /bind, which waits its turn where a node has a lock. /filter answers in seconds."
    yield f"  httpTimeout: {timeout}"
    yield "  # Without hami nobody counts the cards: no such pod may be placed."
    yield "  ignorable: false"
    yield "  # Pods with one of these are asked about. kube-scheduler itself does not count them:"
    yield "  # shares of a card are not what nodes advertise."
    yield "  managedResources:"
    for name in options.managed_resources:
        yield f"  - name: {_scalar(name)}"
        yield "    ignoredByScheduler: true"


def _tls(options: Options) -> Iterator[str]:
    yield "  tlsConfig:"
    if options.ca_file:
        yield f"    caFile: {_scalar(options.ca_file)}"
    else:
        yield "    # No CA was named. On loopback within a pod nobody else can answer."
        yield "    insecure: true"
    optional: Mapping[str, str] = {
        "certFile": options.client_cert_file,
        "keyFile": options.client_key_file,
        "serverName": options.server_name,
    }
    for key, value in optional.items():
        if value:
            yield f"    {key}: {_scalar(value)}"


def _text(lines: Iterable[str]) -> str:
    return "\n".join(lines) + "\n"


def _seconds(value: float) -> str:
    if value != int(value):
        return f"{value}s"
    minutes, seconds = divmod(int(value), 60)
    return f"{int(value)}s" if seconds else f"{minutes}m"


def _scalar(value: str | bool) -> str:  # noqa: FBT001 - a value, not a switch of this function
    if isinstance(value, bool):
        return str(value).lower()
    # A JSON string is one for YAML too.
    return value if _PLAIN.fullmatch(value) else codec.encode_text(value)


#: The first minor version whose kube-scheduler watches every change of a node, plus one: it may be
#: one older than the API server.
_WATCHES_NODES = 33
RETRY_S, AGAIN_S = 5.0, 3600.0


class _Version(codec.Object, frozen=True):
    minor: str | None = None


class KubeVersion:
    """The API server's version, read again every hour: servers are upgraded."""

    def __init__(self, client: Client) -> None:
        self._client = client
        #: Of the API server; None: not known yet.
        self.minor: int | None = None

    @property
    def node_events_requeue(self) -> bool:
        """Whether a changed node makes kube-scheduler retry unschedulable pods."""
        return self.minor is not None and self.minor >= _WATCHES_NODES

    async def run(self) -> None:
        while True:
            try:
                await self.read()
            except (errors.KubeError, wire_errors.WireError) as error:
                _log.warning(
                    "cannot read the API server's version, retrying", extra={"error": str(error)}
                )
            await asyncio.sleep(AGAIN_S if self.minor is not None else RETRY_S)

    async def read(self) -> None:
        body = await self._client.get("/version")
        # Providers write 30+, for example.
        digits = re.match(r"[0-9]+", codec.decode(body, _Version, what="version").minor or "")
        self.minor = int(digits[0]) if digits else None
