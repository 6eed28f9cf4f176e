"""Rules of amounts: which resources there are, and that cards come whole."""

from __future__ import annotations

from collections.abc import Iterator

from hami.wire import quantity
from hami_sandbox.apiserver.refusals import Object
from hami_sandbox.apiserver.schema import causes, names, quantities
from hami_sandbox.apiserver.schema.causes import Cause

_STANDARD = frozenset({"cpu", "memory", "ephemeral-storage"})
_HUGE_PAGES = "hugepages-"
_STRANGE = "must be a standard resource type or fully qualified"
WHOLE = "must be an integer"


def is_extended(name: str) -> bool:
    """Say whether a resource is one of a device plugin."""
    return "/" in name and "kubernetes.io/" not in name and not name.startswith("requests.")


def amounts(found: Object, field: str, *, dotted: bool = False) -> Iterator[Cause]:
    """Yield what is wrong with amounts, whatever they are for."""
    for name, amount in found.items():
        place = f"{field}.{name}" if dotted else f"{field}[{name}]"
        for wrong in names.qualified(name):
            yield causes.invalid(place, name, wrong)
        if quantity.parse(amount, what=name) < 0:
            yield causes.invalid(place, amount, "must be greater than or equal to 0")
        elif is_extended(name) and not quantities.whole(amount):
            yield causes.invalid(place, amount, WHOLE)


def requirements(resources: Object, field: str) -> Iterator[Cause]:
    """Yield what is wrong with a container's requests and limits."""
    limits, requests = resources.get("limits") or {}, resources.get("requests") or {}
    for part, found in (("limits", limits), ("requests", requests)):
        yield from amounts(found, f"{field}.{part}")
        for name in found:
            if "/" not in name and name not in _STANDARD and not name.startswith(_HUGE_PAGES):
                place = f"{field}.{part}[{name}]"
                yield causes.invalid(place, name, _STRANGE)
                yield causes.invalid(place, name, "must be a standard resource for containers")
    for name, amount in requests.items():
        yield from _against_limit(name, amount, limits, field)


def _against_limit(name: str, amount: str, limits: Object, field: str) -> Iterator[Cause]:
    fixed = is_extended(name) or name.startswith(_HUGE_PAGES)
    if name not in limits:
        if fixed:
            told = "Limit must be set for non overcommitable resources"
            yield causes.required(f"{field}.limits", told)
        return
    asked, most = (quantity.parse(each, what=name) for each in (amount, limits[name]))
    place = f"{field}.requests"
    if fixed and asked != most:
        yield causes.invalid(place, amount, f"must be equal to {name} limit of {limits[name]}")
    elif asked > most:
        told = f"must be less than or equal to {name} limit of {limits[name]}"
        yield causes.invalid(place, amount, told)
