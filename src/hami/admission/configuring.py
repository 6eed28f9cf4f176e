"""Settings and files to the rules of admission, for both processes that have it."""

from __future__ import annotations

from hami.admission import chains, fallback
from hami.admission.fallback import End, Mode, Plan
from hami.vendors.row import Vendor
from hami.wire import mig_profile

_SECTION = "nvidia"


def plan(vendors: tuple[Vendor, ...], *, mode: str, end: str, file: str) -> Plan | None:
    """Return how MIG profiles are replaced; None: not at all. Reads the file of chains."""
    chosen = Mode(mode)
    if chosen is Mode.OFF:
        return None
    return Plan(
        mode=chosen,
        end=End(end),
        chains=chains.load(file) if file else chains.built_in(),
        vendor=next(vendor for vendor in vendors if vendor.section == _SECTION),
    )


def looked_for(plan: Plan | None) -> tuple[str, ...]:
    """Return what stands in the JSON of pods that an inventory must know of."""
    if plan is None or plan.mode is not fallback.Mode.AVAILABLE:
        return ()
    return (f'"{mig_profile.RESOURCE_PREFIX}', f'"{plan.vendor.resources.count}"')
