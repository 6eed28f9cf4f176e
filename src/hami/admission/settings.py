"""Settings of `hami webhook`, and how settings and files become rules.

What `hami webhook` can be told: MIG fallback alone, without a scheduler.
The names are those of the scheduler's settings where both have them.

Settings and files to the rules of admission, for both processes that have it.
"""

from __future__ import annotations

import msgspec

from hami.admission import mig_fallback
from hami.admission.mig_fallback import End, Mode, Plan
from hami.vendors.table import Vendor
from hami.wire import mig


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    # Serving.

    #: Where /webhook and health answer.
    http_bind: str = ":8443"
    #: PEM files; both or none. Without them the server speaks plain HTTP.
    cert_file: str = ""
    key_file: str = ""
    #: Where /metrics answers; empty: nowhere.
    metrics_bind_address: str = ":9395"
    #: Seconds that new requests are still answered after SIGTERM: until then nobody may know.
    shutdown_delay: float = 0.0
    #: Seconds that requests under way may take to end after that.
    drain_timeout: float = 10.0

    # Fallback.

    #: When a MIG profile counts as there: type or available.
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
    #: Seconds between two comparisons of the caches with the API server.
    resync_interval: float = 900.0

    # Telling.

    debug: bool = False
    #: Address of an OpenTelemetry collector (OTLP over HTTP); empty: no traces.
    otlp_endpoint: str = ""


_SECTION = "nvidia"


def plan(vendors: tuple[Vendor, ...], *, mode: str, end: str, file: str) -> Plan | None:
    """Return how MIG profiles are replaced; None: not at all. Reads the file of chains."""
    chosen = Mode(mode)
    if chosen is Mode.OFF:
        return None
    return Plan(
        mode=chosen,
        end=End(end),
        chains=mig_fallback.load(file) if file else mig_fallback.built_in(),
        vendor=next(vendor for vendor in vendors if vendor.section == _SECTION),
    )


def looked_for(plan: Plan | None) -> tuple[str, ...]:
    """Return what stands in the JSON of pods that an inventory must know of."""
    if plan is None or plan.mode is not mig_fallback.Mode.AVAILABLE:
        return ()
    return (f'"{mig.RESOURCE_PREFIX}', f'"{plan.vendor.resources.count}"')
