"""Find containers above their limit, and processes without limiter.

Inside a container the limiter is cooperative; NVML on the host needs nothing from there. So every
process that NVML shows is compared with the shares of its container (over the limit), and with the
living process entries of its state file: a process that is in none of them runs without the limiter
(unmanaged), as does one of no container of ours. Containers with whole cards and exempt ones have
no entries, and may use all of their cards. A MIG device that we gave to no container is fenced by
its hardware, and left out. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet

import msgspec

from hami.monitor.containers import Container, Key
from hami.monitor.driver import DriverSample
from hami.monitor.processes import Owner
from hami.wire.shares import Share

_NO_SAMPLE = DriverSample(taken=0.0)


class OwnedProcess(msgspec.Struct, frozen=True, kw_only=True):
    """A process on a card, and its owner."""

    #: UUID of the card or MIG device.
    card: str
    #: The card's index on the node; of a MIG device its card's.
    card_index: int
    mig: bool = False
    pid: int
    start: int
    inner_pid: int
    #: Bytes; None: the driver does not report it.
    memory: int | None
    owner: Owner


class OverLimit(msgspec.Struct, frozen=True, kw_only=True):
    """A container above its limit on one card."""

    container: Container
    share: Share
    #: Bytes.
    used: int
    processes: tuple[OwnedProcess, ...]

    @property
    def excess(self) -> int:
        """Bytes above the limit."""
        return self.used - self.share.memory_bytes


class Findings(msgspec.Struct, frozen=True, kw_only=True):
    """One audit: the driver's sample, its usage by container, and processes that break a rule."""

    sample: DriverSample = _NO_SAMPLE
    over: tuple[OverLimit, ...] = ()
    unmanaged: tuple[OwnedProcess, ...] = ()
    #: Bytes by card and container; a card that is missing was not sampled.
    memory: Mapping[str, Mapping[Key, int]] = {}
    #: Percent of compute by card and container; of a missing card it is not known.
    compute: Mapping[str, Mapping[Key, int]] = {}
    #: Generation of the policy of each container whose limits were written again.
    resized: Mapping[Key, int] = {}


def find(
    sample: DriverSample,
    processes: Iterable[OwnedProcess],
    *,
    living: Mapping[Key, AbstractSet[int]],
    given: AbstractSet[str],
) -> Findings:
    """Compare the processes of a sample with the shares of their containers.

    `living` has the living pids of each container that has process entries, `given` the UUIDs of
    which any container has a share.
    """
    found = list(processes)
    memory: dict[str, dict[Key, int]] = {each.uuid: {} for each in sample.processes}
    busy = {each.uuid: each.compute for each in sample.processes if each.compute is not None}
    compute: dict[str, dict[Key, int]] = {card: {} for card in busy}
    for process in found:
        key, card = process.owner.key, process.card
        _add(memory.setdefault(card, {}), key, process.memory or 0)
        if card in busy:
            _add(compute[card], key, busy[card].get(process.pid, 0))
    compute |= _alone(sample, found)
    return Findings(
        sample=sample,
        over=_over(found),
        unmanaged=tuple(
            process
            for process in found
            if not (process.mig and process.card not in given) and not _managed(process, living)
        ),
        memory=memory,
        compute=compute,
    )


def _alone(sample: DriverSample, processes: Iterable[OwnedProcess]) -> dict[str, dict[Key, int]]:
    """Return the compute of containers that have a card for themselves, where samples are missing.

    A driver that takes no samples of processes may still report how busy the card is.
    """
    busy = {each.card.uuid: each.utilization for each in sample.cards}
    owners: dict[str, dict[int, Key]] = {}
    for process in processes:
        owners.setdefault(process.card, {})[process.pid] = process.owner.key
    found = {}
    for on in sample.processes:
        utilization, by_pid = busy.get(on.uuid), owners.get(on.uuid, {})
        keys = set(by_pid.values())
        complete = by_pid.keys() == {process.pid for process in on.processes}
        if on.compute is None and utilization is not None and complete and len(keys) == 1:
            found[on.uuid] = {keys.pop(): utilization[0]}
    return found


def _add(sums: dict[Key, int], key: Key, number: int) -> None:
    sums[key] = sums.get(key, 0) + number


def _over(processes: Iterable[OwnedProcess]) -> tuple[OverLimit, ...]:
    groups: dict[tuple[Key, str], list[OwnedProcess]] = {}
    for process in processes:
        container = process.owner.container
        if container is not None and container.limited and process.memory is not None:
            groups.setdefault((container.key, process.card), []).append(process)
    found = []
    for members in groups.values():
        container = members[0].owner.container
        assert container is not None
        share = container.share(members[0].card)
        used = sum(process.memory or 0 for process in members)
        if share is not None and share[1].memory_mib and used > share[1].memory_bytes:
            found.append(
                OverLimit(container=container, share=share[1], used=used, processes=tuple(members))
            )
    return tuple(found)


def _managed(process: OwnedProcess, living: Mapping[Key, AbstractSet[int]]) -> bool:
    container = process.owner.container
    if container is not None:
        if container.share(process.card) is None:
            return False  # on a card that it was never given
        if not container.limited or container.key not in living:
            return True
    return process.inner_pid in living.get(process.owner.key, ())
