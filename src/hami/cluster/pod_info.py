"""The ledger: which cards each pod holds, one row per pod UID.

A row keeps what was granted to each container as the annotation says it (the *raw slots*) and is
small: pod objects are not kept. What the row costs its node (`holdings`, the collapsed view), its
namespace (`quota_use`) and kubelet (`ids`) follows from it. `read_pod` makes a row from an API
object; the tables of `hami.cluster.card_table` are sums over rows.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Iterable, Iterator, Sequence

import msgspec

from hami.vendors.table import Vendor
from hami.wire import annotation_keys, errors, objects, quantity, shares
from hami.wire.objects import ContainerKind


class Allocation(enum.IntEnum):
    """How firm a row is."""

    #: Ours, in memory only: it lapses unless the pod is bound.
    RESERVED = 0
    #: The pod's annotations name a node, but it is not bound (HAMi writes before it binds).
    ANNOTATED = 1
    #: The API server has the pod on the node; its grants are frozen.
    BOUND = 2


class PodInfo(msgspec.Struct, frozen=True, gc=False):
    """What one pod holds on one node. A hundred thousand of them: the collector passes them by."""

    uid: str
    namespace: str
    name: str
    node: str
    #: One per container, init containers first.
    kinds: tuple[ContainerKind, ...]
    #: (vendor word, one slot per container) for each vendor with any grant, sorted by word.
    slots: tuple[tuple[str, shares.PodShares], ...] = ()
    #: (vendor word, card id) of grants whose amounts cannot be read: those cards are closed.
    closed: tuple[tuple[str, str], ...] = ()
    #: (vendor word, device ids kubelet gave or will give), foreign pods included.
    ids: tuple[tuple[str, int], ...] = ()
    hold: Allocation = Allocation.BOUND
    #: Whether its init containers have ended and count no more.
    init_done: bool = False
    #: When a reservation lapses, in the caller's clock.
    deadline: float = math.inf

    def words(self) -> set[str]:
        """Return the words of the vendors whose cards it holds."""
        return {word for word, _ in (*self.slots, *self.closed)}

    def holdings(self) -> Iterator[tuple[str, str, int, int, int]]:
        """Yield (vendor word, card id, slots, MiB, percent): the collapsed view."""
        for word, slots in self.slots:
            #: Card id -> container position -> its MiB and percent there.
            cards: dict[str, dict[int, tuple[int, int]]] = {}
            for position, slot in enumerate(slots):
                for grant in slot:
                    shares = cards.setdefault(grant.card, {})
                    memory, cores = shares.get(position, (0, 0))
                    shares[position] = (memory + grant.memory_mib, cores + grant.cores)
            for uuid, shares in cards.items():
                yield (
                    word,
                    uuid,
                    self._peak((self.kinds[at], 1) for at in shares),
                    self._peak((self.kinds[at], memory) for at, (memory, _) in shares.items()),
                    self._peak((self.kinds[at], cores) for at, (_, cores) in shares.items()),
                )

    def quota_use(self) -> Iterator[tuple[str, int, int]]:
        """Yield (vendor word, MiB, percent) over all cards of each vendor."""
        for word, slots in self.slots:
            yield (
                word,
                self._peak(
                    zip(self.kinds, (sum(g.memory_mib for g in s) for s in slots), strict=True)
                ),
                self._peak(zip(self.kinds, (sum(g.cores for g in s) for s in slots), strict=True)),
            )

    def _peak(self, steps: Iterable[tuple[ContainerKind, int]]) -> int:
        return shares.peak(steps, init_done=self.init_done)


class PodReading(msgspec.Struct, frozen=True):
    """What a pod object says: a row, or none; and what could not be read."""

    row: PodInfo | None
    problems: tuple[str, ...] = ()


#: Few distinct container layouts exist; sharing them saves most of a row's memory.
_layouts: dict[tuple[ContainerKind, ...], tuple[ContainerKind, ...]] = {}


def read_pod(pod: objects.Pod, vendors: Sequence[Vendor]) -> PodReading:
    """Make the ledger row of a pod as the API server has it.

    A device list that does not decode is a problem of that pod alone. What can be read of it
    counts; cards with an unreadable amount are closed, because nobody knows what is left of them.
    """
    if pod.finished:
        return PodReading(None)
    kinds: list[ContainerKind] = []
    containers: list[objects.Container] = []
    for kind, container in pod.containers():
        kinds.append(kind)
        containers.append(container)
    problems: list[str] = []
    slots: dict[str, shares.PodShares] = {}
    closed: list[tuple[str, str]] = []
    ids: list[tuple[str, int]] = []
    for vendor in vendors:
        counts = [_count(vendor, c, problems) for c in containers]
        held = shares.peak(zip(kinds, counts, strict=True))
        if held:
            ids.append((vendor.word, held))
        value = pod.annotation(vendor.annotations.allocated)
        if not value:
            continue
        what = f"pod {pod.namespace}/{pod.name}, {vendor.annotations.allocated}"
        try:
            granted = shares.decode(value, what=what)
        except errors.WireError as error:
            problems.append(str(error))
            granted, unreadable = shares.salvage(value)
            closed += [(vendor.word, card) for card in unreadable]
        aligned = shares.align(granted, counts)
        if any(aligned):
            slots[vendor.word] = aligned
    if (slots or closed) and not ids and not pod.node_name:
        what = f"pod {pod.namespace}/{pod.name} names cards, but asks for none: not counted"
        problems.append(what)
        return PodReading(None, tuple(problems))
    assigned = pod.annotation(annotation_keys.ASSIGNED_NODE) if slots or closed else ""
    node = pod.node_name or assigned
    if not node or not (slots or closed or ids):
        return PodReading(None, tuple(problems))
    layout = tuple(kinds)
    row = PodInfo(
        uid=pod.uid,
        namespace=pod.namespace,
        name=pod.name,
        node=node,
        kinds=_layouts.setdefault(layout, layout),
        slots=tuple(sorted(slots.items())),
        closed=tuple(closed),
        ids=tuple(ids),
        hold=Allocation.BOUND if pod.node_name else Allocation.ANNOTATED,
        init_done=pod.init_done,
    )
    return PodReading(row, tuple(problems))


def merge(known: PodInfo | None, seen: PodInfo | None) -> PodInfo | None:
    """Return the row of a living pod of which we know one thing and the API server shows another.

    A pod that is not bound keeps our reservation. One that is bound keeps, vendor by vendor, the
    grant it was first seen with, whatever becomes of its annotations; only its init containers may
    end. Where its annotation cannot be read, what we reserved for it on that node still holds.
    """
    if known is None:
        return seen
    if seen is None or seen.hold is not Allocation.BOUND:
        return seen if known.hold is Allocation.ANNOTATED else known
    if known.node != seen.node or known.kinds != seen.kinds:
        return seen
    by_belief = (known, seen) if known.hold is Allocation.BOUND else (seen, known)
    slots: list[tuple[str, shares.PodShares]] = []
    closed: list[tuple[str, str]] = []
    for word in sorted({*known.words(), *seen.words()}):
        sources = [row for row in by_belief if word in row.words()]
        undamaged = (row for row in sources if word not in dict(row.closed))
        source = next(undamaged, sources[0])
        slots += [entry for entry in source.slots if entry[0] == word]
        closed += [cell for cell in source.closed if cell[0] == word]
    return msgspec.structs.replace(seen, slots=tuple(slots), closed=tuple(closed))


def _count(vendor: Vendor, container: objects.Container, problems: list[str]) -> int:
    amount = container.amount(vendor.resources.count)
    if amount is None:
        return 0
    try:
        what = f"container {container.name}, {vendor.resources.count}"
        return quantity.exact_integer(amount, what=what)
    except errors.WireError as error:
        problems.append(str(error))
        return 0
