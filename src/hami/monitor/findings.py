"""Who has more of a card than he was given, by the driver's own account. Pure.

Inside a container the limiter is cooperative; NVML seen from the host needs nothing from there. So
every process that NVML shows is held against what its container may have (over the limit), and
against the container's living slots: a process that is in none of them runs without the limiter
(unmanaged), as does one of no container of ours. Containers with whole cards and exempted ones have
no slots, and may have all of their cards. A MIG device that nobody was given through us is fenced
by its hardware and not our business.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet

import msgspec

from hami.monitor.containers import Container, Key
from hami.monitor.processes import Owner
from hami.wire.shares import Share


class OnCard(msgspec.Struct, frozen=True, kw_only=True):
    """A process on a card."""

    uuid: str
    #: The card's index on the node; of a MIG device its card's.
    index: int
    mig: bool = False
    pid: int
    start: int
    inner_pid: int
    #: Bytes; None: the driver does not tell.
    memory: int | None
    owner: Owner


class Over(msgspec.Struct, frozen=True, kw_only=True):
    """A container above its limit on one card."""

    container: Container
    place: int
    share: Share
    used: int
    processes: tuple[OnCard, ...]

    @property
    def bytes(self) -> int:
        return self.used - self.share.memory_bytes


class Findings(msgspec.Struct, frozen=True):
    over: tuple[Over, ...] = ()
    unmanaged: tuple[OnCard, ...] = ()


def find(
    found: Iterable[OnCard],
    *,
    living: Mapping[Key, AbstractSet[int]],
    given: AbstractSet[str],
) -> Findings:
    """Judge processes.

    `living` has the pids in the living slots of each container that has slots, `given` the UUIDs of
    which any container has a share.
    """
    processes = list(found)
    return Findings(
        over=_over(processes),
        unmanaged=tuple(
            process
            for process in processes
            if not (process.mig and process.uuid not in given) and not _managed(process, living)
        ),
    )


def _over(processes: Iterable[OnCard]) -> tuple[Over, ...]:
    sums: dict[tuple[Key, str], list[OnCard]] = {}
    for process in processes:
        container = process.owner.container
        if container is not None and container.limited and process.memory is not None:
            sums.setdefault((container.key, process.uuid), []).append(process)
    found = []
    for members in sums.values():
        container = members[0].owner.container
        assert container is not None
        place = container.share(members[0].uuid)
        used = sum(process.memory or 0 for process in members)
        if place is not None and place[1].memory_mib and used > place[1].memory_bytes:
            found.append(
                Over(
                    container=container,
                    place=place[0],
                    share=place[1],
                    used=used,
                    processes=tuple(members),
                )
            )
    return tuple(found)


def _managed(process: OnCard, living: Mapping[Key, AbstractSet[int]]) -> bool:
    container = process.owner.container
    if container is not None:
        if container.share(process.uuid) is None:
            return False  # on a card that it was never given
        if not container.limited or container.key not in living:
            return True
    return process.inner_pid in living.get(process.owner.key, ())
