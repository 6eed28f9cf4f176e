"""Quota of a namespace: section 6 of docs/placement.md.

`over_quota` is row 8 of the card checks in tests/oracle/reference_checks.py.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable

from hami.wire import errors, objects, quantity
from tests.oracle.reference_holdings import held_shares, is_granted, peak
from tests.oracle.reference_unproven import is_unproven, unproven_quota
from tests.oracle.reference_vendor import RefVendor, Take


@dataclasses.dataclass(frozen=True)
class Quota:
    """A vendor's quota in the pod's namespace; None: no limit."""

    memory_limit: int | None
    memory_used: int
    cores_limit: int | None
    cores_used: int


@dataclasses.dataclass
class Running:
    """What the incoming pod has of a vendor in the state so far."""

    memory: int = 0
    cores: int = 0


def read_limit(quota: objects.ResourceQuota, resource: str) -> int | None:
    """Read a limit, rounded down; None: absent or unreadable."""
    amount = quota.hard.get(f"limits.{resource}") if resource else None
    if amount is None:
        return None
    try:
        return math.floor(quantity.parse(amount, what=f"limits.{resource}"))
    except errors.WireError:
        return None


def quota_of(
    vendor: RefVendor,
    namespace: str,
    pods: Iterable[objects.Pod],
    quotas: Iterable[objects.ResourceQuota],
) -> Quota:
    memory_limits: list[int] = []
    cores_limits: list[int] = []
    for quota in quotas:
        if quota.namespace == namespace and vendor.enforces_quota:
            for resource, limits in ((vendor.memory, memory_limits), (vendor.cores, cores_limits)):
                limit = read_limit(quota, resource)
                if limit is not None:
                    limits.append(limit)
    memory_used = 0
    cores_used = 0
    for pod in pods:
        if pod.namespace != namespace or not pod.node_name:
            continue
        if is_unproven(pod, vendor):
            asked = unproven_quota(pod, vendor)
            memory_used += peak((kind, memory) for kind, memory, _ in asked)
            cores_used += peak((kind, cores) for kind, _, cores in asked)
        elif is_granted(pod, vendor):
            held = held_shares(pod, vendor)
            memory_used += peak((kind, sum(g.memory_mib for g in grants)) for kind, grants in held)
            cores_used += peak((kind, sum(g.cores for g in grants)) for kind, grants in held)
    return Quota(
        min(memory_limits) * max(vendor.memory_factor, 1) if memory_limits else None,
        memory_used,
        min(cores_limits) if cores_limits else None,
        cores_used,
    )


def over_quota(quota: Quota, count: int, take: Take, running: Running) -> bool:
    """Say whether so many cards like this one, each with what is taken of it, pass a limit."""
    if quota.memory_limit is not None:
        more = count * take.memory
        if more > 0 and quota.memory_used + running.memory + more > quota.memory_limit:
            return True
    if quota.cores_limit is not None:
        more = count * take.cores
        if more > 0 and quota.cores_used + running.cores + more > quota.cores_limit:
            return True
    return False
