"""Whether a card can carry one more grant, whatever annotations say.

The scheduler decides; this is the node's own sum, from the ledger alone, so that a forged, doubled
or outdated grant never puts more on a card than it has. A pod counts as the scheduler counts it:
with the most that it holds at one time (`hami.cluster.phases`).
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple

from hami.cluster import phases
from hami.node.record import Record
from hami.wire.node_register import Device
from hami.wire.objects import ContainerKind


class Use(NamedTuple):
    """What is held of one card."""

    #: MiB.
    memory: int
    #: Percent.
    cores: int
    #: Containers.
    slots: int


def check(
    records: Iterable[Record],
    new: Record,
    devices: Mapping[str, Device],
    *,
    init_done: Collection[str] = (),
) -> str:
    """Return why `new` does not fit beside the records, or an empty text.

    An older record of the same pod does not count. `init_done` has the UIDs of pods whose init
    containers have ended: the scheduler gives to others what only those held.
    """
    wanted = held_by(new, init_done=new.uid in init_done)
    others = [record for record in records if record.uid != new.uid]
    used = total(others, init_done=init_done)
    for uuid, use in wanted.items():
        device = devices.get(uuid)
        if device is None:
            return f"card {uuid} is none of this node's"
        before = used.get(uuid, Use(0, 0, 0))
        for name, unit, asked, taken, there in (
            ("memory", " MiB", use.memory, before.memory, device.devmem),
            ("cores", "%", use.cores, before.cores, device.devcore),
            ("shares", "", use.slots, before.slots, device.count),
        ):
            if asked and taken + asked > there:
                return (
                    f"card {uuid} has {there}{unit} of {name}, {taken}{unit} are taken by other "
                    f"pods, {asked}{unit} more do not fit"
                )
    return ""


def total(records: Iterable[Record], *, init_done: Collection[str] = ()) -> dict[str, Use]:
    """Return what all pods together hold of each card."""
    sums: dict[str, Use] = {}
    for record in records:
        for uuid, use in held_by(record, init_done=record.uid in init_done).items():
            before = sums.get(uuid, Use(0, 0, 0))
            sums[uuid] = Use(*map(sum, zip(before, use, strict=True)))
    return sums


def held_by(record: Record, *, init_done: bool = False) -> dict[str, Use]:
    """Return the most that one pod holds of each of its cards at one time."""
    kinds = (container.kind for container in record.containers)
    #: Card -> its part in each container that has one.
    cards: dict[str, list[tuple[ContainerKind, Use]]] = {}
    # A slot behind the last container is no container's, but what it says is taken is taken.
    for kind, grants in itertools.zip_longest(kinds, record.slots, fillvalue=None):
        parts: dict[str, Use] = {}
        for grant in grants or ():
            memory, cores, _ = parts.get(grant.uuid, Use(0, 0, 0))
            parts[grant.uuid] = Use(memory + grant.memory, cores + grant.cores, 1)
        for uuid, part in parts.items():
            step = ContainerKind.APP if kind is None else kind
            cards.setdefault(uuid, []).append((step, part))
    return {
        uuid: Use(
            *(
                phases.peak(((kind, part[field]) for kind, part in parts), init_done=init_done)
                for field in range(3)
            )
        )
        for uuid, parts in cards.items()
    }
