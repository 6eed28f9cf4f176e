"""A container's limits: the policy file for libvgpu, and HAMi's variables.

Several shares of one card are one limit: the container sees the card once.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

import msgspec

from hami.wire import errors, policy_file
from hami.wire.shares import Share

CorePolicy = Literal["default", "force", "disable"]

_ALL_CORES = 100


class LimitSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The node's settings for limits, the same for all its containers."""

    #: What the limiter in the container logs: 0 errors only, up to 4 everything.
    log_level: int = 1
    #: When compute limits are enforced: always, never, or (default) while the card is shared.
    core_policy: CorePolicy = "default"
    #: Whether compute shares are reserved without being enforced.
    disable_core_limit: bool = False
    #: Whether cards are registered with more memory than they have.
    oversubscribe: bool = False

    @property
    def ignores_cores(self) -> bool:
        return self.disable_core_limit or self.core_policy == "disable"

    @property
    def forces_cores(self) -> bool:
        return self.core_policy == "force" and not self.ignores_cores


def by_card(shares: Iterable[Share]) -> tuple[Share, ...]:
    """Add up a container's shares of each card, in the order of the shares."""
    cards: dict[str, Share] = {}
    for share in shares:
        known = cards.get(share.card)
        cards[share.card] = share if known is None else _sum(known, share)
    return tuple(cards.values())


def _sum(one: Share, other: Share) -> Share:
    # No limit and some limit are no limit, and no container has more than all of a card's time.
    cores = min(one.cores + other.cores, _ALL_CORES) if one.cores and other.cores else 0
    return msgspec.structs.replace(one, memory_mib=one.memory_mib + other.memory_mib, cores=cores)


def policy(
    cards: Sequence[Share],
    settings: LimitSettings,
    *,
    generation: int,
    priority: int,
    uid: str,
    namespace: str,
    name: str,
    container: str,
    context_bytes: Mapping[str, int] | None = None,
) -> policy_file.Policy:
    """Build the policy of a container; WireError if a policy file cannot carry it."""
    for card in cards:
        if not card.memory_mib:
            # In a policy 0 is no limit at all.
            raise errors.WireError(
                f"share of card {card.card}",
                card.memory_mib,
                "MiB of memory: a share needs some",
                "delete the pod to reschedule it",
            )
    flags = policy_file.Flag(0)
    if settings.oversubscribe:
        flags |= policy_file.Flag.OVERSUBSCRIBE
    if settings.forces_cores:
        flags |= policy_file.Flag.FORCE_CORES
    if settings.ignores_cores:
        flags |= policy_file.Flag.IGNORE_CORES
    return policy_file.Policy(
        generation=generation,
        shares=tuple(cards),
        flags=flags,
        priority=priority,
        pod_uid=uid,
        pod_namespace=namespace,
        pod_name=name,
        container=container,
        context_bytes=context_bytes or {},
    )


def env(cards: Sequence[Share], settings: LimitSettings) -> dict[str, str]:
    """Return the limits as HAMi's environment variables: programs and dashboards read them."""
    variables = {
        f"CUDA_DEVICE_MEMORY_LIMIT_{index}": f"{card.memory_mib}m"
        for index, card in enumerate(cards)
    }
    variables["CUDA_DEVICE_SM_LIMIT"] = str(cards[0].cores)
    variables["LIBCUDA_LOG_LEVEL"] = str(settings.log_level)
    if settings.oversubscribe:
        variables["CUDA_OVERSUBSCRIBE"] = "true"
    if settings.ignores_cores:
        variables["GPU_CORE_UTILIZATION_POLICY"] = "disable"
    elif settings.forces_cores:
        variables["GPU_CORE_UTILIZATION_POLICY"] = "force"
    return variables


def renewed(old: bytes | None, wanted: policy_file.Policy) -> bytes | None:
    """Return the file to write over the old one; None if the old one has the same content.

    Running processes apply only a higher generation. So a change always has one, also where the
    ledger's count was lost, or where the node's settings changed.
    """
    known = _decoded(old)
    if known is not None and known.generation >= wanted.generation:
        same = msgspec.structs.replace(wanted, generation=known.generation)
        if policy_file.encode(same) == old:
            return None
        wanted = msgspec.structs.replace(wanted, generation=known.generation + 1)
    return policy_file.encode(wanted)


def is_valid(data: bytes | None) -> bool:
    """Return whether the library would obey this file."""
    return _decoded(data) is not None


def _decoded(data: bytes | None) -> policy_file.Policy | None:
    try:
        return None if data is None else policy_file.decode(data)
    except errors.WireError:
        return None
