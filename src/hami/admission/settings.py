"""Settings of `hami webhook`, and rules of admission from settings and files.

`Rules` are fixed when a process starts. Both processes with admission, `hami webhook` and
`hami scheduler`, make theirs from their own settings. `Context` adds what changes while the process
runs: what nodes offer, and what each namespace may still take.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from hami.admission import mig_fallback
from hami.admission.mig_fallback import End, Mode, Plan
from hami.admission.mig_offer import MigOffer
from hami.cluster.quota import Headroom
from hami.placement.request import Defaults
from hami.vendors import table
from hami.vendors.device_config import NvidiaSettings
from hami.vendors.table import Vendor
from hami.wire import mig

ANY = "*"
"""In a list of namespaces: all of them."""


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of `hami webhook`, under the names that the scheduler's settings have."""

    # Serving.

    #: Where /webhook and health answer.
    http_bind: str = ":8443"
    #: PEM files; both or none. Without them the server speaks plain HTTP.
    cert_file: str = ""
    key_file: str = ""
    #: Where /metrics answers; empty: nowhere.
    metrics_bind_address: str = ":9395"
    #: Seconds that new requests are still answered after SIGTERM: clients learn of the stop late.
    shutdown_delay: float = 0.0
    #: Seconds that requests under way may take to end after that.
    drain_timeout: float = 10.0

    # Fallback.

    #: When a MIG profile counts as present: type or available.
    mig_fallback: str = "type"
    #: Chains of profiles; empty: the built-in ones.
    mig_fallback_file: str = ""
    #: Names of resources; empty: the built-in ones.
    device_config_file: str = ""

    # The API server.

    #: Empty: $KUBECONFIG, then the pod's service account, then ~/.kube/config.
    kubeconfig: str = ""
    #: Requests per second and at once; 0: without limit, the API server's fairness decides.
    kube_qps: float = 0.0
    kube_burst: int = 0
    #: Seconds for one request; 0: 30.
    kube_timeout: float = 0.0
    #: Seconds between two resyncs with the API server.
    resync_interval: float = 900.0

    # Logs and traces.

    debug: bool = False
    #: Address of an OpenTelemetry collector (OTLP over HTTP); empty: no traces.
    otlp_endpoint: str = ""


class Rules(msgspec.Struct, frozen=True, kw_only=True):
    """What admission does, as flags and device-config.yaml configure it."""

    vendors: tuple[Vendor, ...]
    nvidia: NvidiaSettings = NvidiaSettings()
    #: schedulerName of pods with cards; empty: only MIG profiles are replaced.
    scheduler_name: str = "hami-scheduler"
    #: Also take pods that name default-scheduler.
    force_overwrite_default_scheduler: bool = True
    #: Policies of pods that name none.
    defaults: Defaults = Defaults()
    #: The folder above `vgpu` that the node agent mounts into containers.
    hook_path: str = "/usr/local"
    #: May use the highest priority, which delays every other container on the card.
    high_priority_namespaces: frozenset[str] = frozenset()
    high_priority_classes: frozenset[str] = frozenset()
    #: None: MIG profiles are not replaced.
    fallback: Plan | None = None


def unknown_slices(_: str) -> int:
    """Return the parts of cards where no node is known."""
    return 0


class Context(msgspec.Struct, frozen=True):
    """What an admission result depends on beside the pod."""

    rules: Rules
    mig_offer: MigOffer
    #: What a namespace may still take of a vendor's cards.
    headroom: Callable[[str, Vendor], Headroom]
    #: Into how many parts nodes cut each card of a vendor, by its name.
    slices: Callable[[str], int] = unknown_slices


def unlimited(_: str, __: Vendor) -> Headroom:
    """Return the headroom of a namespace where no quota is counted."""
    return Headroom()


def webhook_rules(settings: Settings, vendors: tuple[Vendor, ...]) -> Rules:
    """Return the rules of `hami webhook`: replace MIG profiles and nothing else."""
    fallback = plan(
        vendors, mode=settings.mig_fallback, end=End.WHOLE, file=settings.mig_fallback_file
    )
    return Rules(vendors=vendors, scheduler_name="", fallback=fallback)


def plan(vendors: tuple[Vendor, ...], *, mode: str, end: str, file: str) -> Plan | None:
    """Return how MIG profiles are replaced, None if they are not; reads the file of chains."""
    chosen = Mode(mode)
    if chosen is Mode.OFF:
        return None
    return Plan(
        mode=chosen,
        end=End(end),
        chains=mig_fallback.load(file) if file else mig_fallback.built_in(),
        vendor=table.nvidia(vendors),
    )


def gpu_resource(plan: Plan | None) -> str:
    """Return the resource at the end of every chain; empty: profiles are not replaced."""
    return plan.vendor.resources.count if plan is not None else ""


def pod_marks(plan: Plan | None) -> tuple[str, ...]:
    """Return texts of which each pod that the MIG offer must count has one in its JSON."""
    if plan is None or plan.mode is not Mode.AVAILABLE:
        return ()
    return (f'"{mig.RESOURCE_PREFIX}', f'"{gpu_resource(plan)}"')
