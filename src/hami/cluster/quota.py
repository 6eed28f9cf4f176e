"""ResourceQuota for card memory and compute: limits and use of each namespace.

Kubernetes itself cannot count these resources (memory is per card, and percentages depend on the
card), so the scheduler counts them here, and its webhook asks the same object. Several quotas may
limit one key: the tightest holds, as in Kubernetes. No numpy here: the stand-alone webhook loads
this module.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

import msgspec

from hami.vendors.table import Vendor
from hami.wire import errors, objects, quantity


class QuotaLimits(msgspec.Struct, frozen=True):
    """What one ResourceQuota object says of the resources we manage."""

    namespace: str
    name: str
    #: By resource name, without the `limits.` prefix, in the resource's own unit.
    limits: Mapping[str, int]
    problems: tuple[str, ...] = ()


def read_quota(quota: objects.ResourceQuota, vendors: Iterable[Vendor]) -> QuotaLimits:
    """Keep the managed keys of a quota; an unreadable value is a problem of that key alone."""
    managed = {name for v in vendors for name in (v.resources.memory, v.resources.cores) if name}
    limits: dict[str, int] = {}
    problems: list[str] = []
    for key, amount in quota.hard.items():
        resource = quantity.resource_of_quota_key(key)
        if resource not in managed or amount is None:
            continue
        try:
            # Use is a whole number, so a limit of 1.5 means exactly what 1 means.
            limits[resource] = math.floor(
                quantity.parse(amount, what=f"quota {quota.namespace}/{quota.name}, {key}")
            )
        except errors.WireError as error:
            problems.append(str(error))
    return QuotaLimits(quota.namespace, quota.name, limits, tuple(problems))


class Headroom(msgspec.Struct, frozen=True):
    """What a namespace may still get of one vendor; None is without limit, below 0 is overdrawn."""

    #: MiB.
    memory: int | None = None
    #: Percent.
    cores: int | None = None

    def allows(self, *, memory: int, cores: int) -> bool:
        """Whether this much more fits. What adds nothing to a key is not held up by it."""
        return not (
            (self.memory is not None and 0 < memory > self.memory)
            or (self.cores is not None and 0 < cores > self.cores)
        )


class Quotas:
    """Limits and use of every namespace."""

    def __init__(self) -> None:
        #: namespace -> quota name -> its limits.
        self._quotas: dict[str, dict[str, QuotaLimits]] = {}
        #: (namespace, vendor name) -> (MiB, percent); entries of zeros are dropped.
        self._used: dict[tuple[str, str], tuple[int, int]] = {}

    def get(self, namespace: str, name: str) -> QuotaLimits | None:
        return self._quotas.get(namespace, {}).get(name)

    def put(self, limits: QuotaLimits) -> None:
        self._quotas.setdefault(limits.namespace, {})[limits.name] = limits

    def drop(self, namespace: str, name: str) -> None:
        quotas = self._quotas.get(namespace, {})
        quotas.pop(name, None)
        if not quotas:
            self._quotas.pop(namespace, None)

    def add_use(self, namespace: str, vendor: str, *, memory: int, cores: int) -> None:
        """Add (or with negative numbers return) what a pod uses."""
        had = self._used.get((namespace, vendor), (0, 0))
        has = (had[0] + memory, had[1] + cores)
        if has == (0, 0):
            self._used.pop((namespace, vendor), None)
        else:
            self._used[namespace, vendor] = has

    def used(self, namespace: str, vendor: str) -> tuple[int, int]:
        """Return MiB and percent in use."""
        return self._used.get((namespace, vendor), (0, 0))

    def all_used(self) -> Mapping[tuple[str, str], tuple[int, int]]:
        return self._used

    def all_limits(self) -> Mapping[tuple[str, str], QuotaLimits]:
        return {(q.namespace, q.name): q for ns in self._quotas.values() for q in ns.values()}

    def limit(self, namespace: str, resource: str) -> int | None:
        """Return the tightest limit on a resource, in its own unit; None without one."""
        quotas = self._quotas.get(namespace, {}).values()
        found = [q.limits[resource] for q in quotas if resource in q.limits]
        return min(found) if found else None

    def headroom(self, namespace: str, vendor: Vendor) -> Headroom:
        """Return what counts when cards are chosen."""
        return (
            self.headroom_at_admission(namespace, vendor) if vendor.enforces_quota else Headroom()
        )

    def headroom_at_admission(self, namespace: str, vendor: Vendor) -> Headroom:
        """Return what counts for new pods, of every vendor."""
        used_memory, used_cores = self.used(namespace, vendor.name)
        memory = self.limit(namespace, vendor.resources.memory)
        cores = self.limit(namespace, vendor.resources.cores)
        return Headroom(
            memory=None if memory is None else memory * max(vendor.memory_factor, 1) - used_memory,
            cores=None if cores is None else cores - used_cores,
        )
