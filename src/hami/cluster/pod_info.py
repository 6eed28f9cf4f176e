"""A Pod, read once: the shares that it holds, and what they cost.

A PodInfo keeps the shares of each container as the annotation lists them, and is small: pod objects
are not kept. What the pod costs its node (`allocations`), its namespace (`quota_use`) and kubelet
(`ids`) follows from it. The card table is the sum of the allocations of all pods.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Iterable, Iterator, Sequence

import msgspec

from hami.vendors.table import Vendor
from hami.wire import annotation_keys, errors, objects, quantity, shares
from hami.wire.objects import ContainerKind
from hami.wire.shares import PodShares, Share


class Hold(enum.IntEnum):
    """How firmly a pod holds its cards."""

    #: Ours, in memory only: it lapses unless the pod is bound.
    RESERVED = 0
    #: The pod's annotations name a node, but it is not bound (HAMi writes before it binds).
    ANNOTATED = 1
    #: The API server has the pod on the node; its shares are frozen.
    BOUND = 2


class Allocation(msgspec.Struct, frozen=True, gc=False):
    """What one pod holds of one card: the most that its containers use at one time."""

    #: Name of the vendor.
    vendor: str
    #: Id of the card.
    card: str
    #: How many containers share the card.
    share_count: int
    #: MiB.
    memory: int
    #: Percent.
    cores: int


_ONE_APP = (ContainerKind.APP,)


class PodInfo(msgspec.Struct, frozen=True, gc=False):
    """What one pod holds on one node. There may be 100,000 of them, so Python's gc skips them."""

    uid: str
    namespace: str
    name: str
    node: str
    #: One per container, init containers first.
    kinds: tuple[ContainerKind, ...]
    #: (vendor name, the shares of each container) for each vendor with any share, sorted by name.
    shares: tuple[tuple[str, PodShares], ...] = ()
    #: (vendor name, card id) of shares whose amounts cannot be read: those cards are closed.
    closed: tuple[tuple[str, str], ...] = ()
    #: (vendor name, device ids kubelet gave or will give), also of pods that others placed.
    ids: tuple[tuple[str, int], ...] = ()
    hold: Hold = Hold.BOUND
    #: Whether its init containers have ended and count no more.
    init_done: bool = False
    #: When a reservation lapses, in the caller's clock.
    deadline: float = math.inf

    def vendors(self) -> set[str]:
        """Return the names of the vendors whose cards it holds."""
        return {vendor for vendor, _ in (*self.shares, *self.closed)}

    def allocations(self) -> Iterator[Allocation]:
        """Yield what it holds of each card; a container that lists a card twice shares it once."""
        for vendor, pod_shares in self.shares:
            if (only := self._only(pod_shares)) is not None:
                yield Allocation(vendor, only.card, 1, only.memory_mib, only.cores)
                continue
            #: Card id -> container index -> its MiB and percent there.
            cards: dict[str, dict[int, tuple[int, int]]] = {}
            for index, container_shares in enumerate(pod_shares):
                for share in container_shares:
                    held = cards.setdefault(share.card, {})
                    memory, cores = held.get(index, (0, 0))
                    held[index] = (memory + share.memory_mib, cores + share.cores)
            for card, held in cards.items():
                yield Allocation(
                    vendor,
                    card,
                    self._peak((self.kinds[index], 1) for index in held),
                    self._peak((self.kinds[index], memory) for index, (memory, _) in held.items()),
                    self._peak((self.kinds[index], cores) for index, (_, cores) in held.items()),
                )

    def quota_use(self) -> Iterator[tuple[str, int, int]]:
        """Yield (vendor name, MiB, percent) over all cards of each vendor."""
        for vendor, pod_shares in self.shares:
            if (only := self._only(pod_shares)) is not None:
                yield vendor, only.memory_mib, only.cores
                continue
            memory = (sum(share.memory_mib for share in each) for each in pod_shares)
            cores = (sum(share.cores for share in each) for each in pod_shares)
            yield (
                vendor,
                self._peak(zip(self.kinds, memory, strict=True)),
                self._peak(zip(self.kinds, cores, strict=True)),
            )

    def _only(self, pod_shares: PodShares) -> Share | None:
        """Return the share of a pod with one app container that has one card, as most are.

        None: it is another pod. Of a hundred thousand pods each is read at the start.
        """
        if self.kinds == _ONE_APP and len(pod_shares) == 1 and len(pod_shares[0]) == 1:
            return pod_shares[0][0]
        return None

    def _peak(self, amounts: Iterable[tuple[ContainerKind, int]]) -> int:
        return shares.peak(amounts, init_done=self.init_done)


#: Few distinct container layouts exist; sharing them saves most of a PodInfo's memory.
_layouts: dict[tuple[ContainerKind, ...], tuple[ContainerKind, ...]] = {}


def read_pod(pod: objects.Pod, vendors: Sequence[Vendor]) -> tuple[PodInfo | None, tuple[str, ...]]:
    """Return what a pod holds as the API server has it, and what could not be read of it.

    None: it holds nothing on any node. A device list that does not decode is a problem of that pod
    alone. What can be read of it counts; cards with an unreadable amount are closed, because it is
    unknown what is left of them.
    """
    if pod.finished:
        return None, ()
    kinds: list[ContainerKind] = []
    containers: list[objects.Container] = []
    for kind, container in pod.containers():
        kinds.append(kind)
        containers.append(container)
    problems: list[str] = []
    found: dict[str, PodShares] = {}
    closed: list[tuple[str, str]] = []
    ids: list[tuple[str, int]] = []
    for vendor in vendors:
        counts = [_count(vendor, container, problems) for container in containers]
        held = shares.peak(zip(kinds, counts, strict=True))
        if held:
            ids.append((vendor.name, held))
        value = pod.annotation(vendor.annotations.allocated)
        if not value:
            continue
        what = f"pod {pod.namespace}/{pod.name}, {vendor.annotations.allocated}"
        try:
            listed = shares.decode(value, what=what)
        except errors.WireError as error:
            problems.append(str(error))
            listed, unreadable = shares.salvage(value)
            closed += [(vendor.name, card) for card in unreadable]
        aligned = shares.align(listed, counts)
        if any(aligned):
            found[vendor.name] = aligned
    if (found or closed) and not ids and not pod.node_name:
        what = f"pod {pod.namespace}/{pod.name} names cards, but asks for none: not counted"
        problems.append(what)
        return None, tuple(problems)
    assigned = pod.annotation(annotation_keys.ASSIGNED_NODE) if found or closed else ""
    node = pod.node_name or assigned
    if not node or not (found or closed or ids):
        return None, tuple(problems)
    layout = tuple(kinds)
    info = PodInfo(
        uid=pod.uid,
        namespace=pod.namespace,
        name=pod.name,
        node=node,
        kinds=_layouts.setdefault(layout, layout),
        shares=tuple(sorted(found.items())),
        closed=tuple(closed),
        ids=tuple(ids),
        hold=Hold.BOUND if pod.node_name else Hold.ANNOTATED,
        init_done=pod.init_done,
    )
    return info, tuple(problems)


def merge(known: PodInfo | None, seen: PodInfo | None) -> PodInfo | None:
    """Return what a living pod holds of which we know one thing and the API server shows another.

    A pod that is not bound keeps our reservation. One that is bound keeps, vendor by vendor, the
    shares it was first seen with, whatever becomes of its annotations; only its init containers may
    end. Where its annotation cannot be read, what we reserved for it on that node still holds.
    """
    if known is None:
        return seen
    if seen is None or seen.hold is not Hold.BOUND:
        return seen if known.hold is Hold.ANNOTATED else known
    if known.node != seen.node or known.kinds != seen.kinds:
        return seen
    by_belief = (known, seen) if known.hold is Hold.BOUND else (seen, known)
    merged: list[tuple[str, PodShares]] = []
    closed: list[tuple[str, str]] = []
    for vendor in sorted({*known.vendors(), *seen.vendors()}):
        sources = [info for info in by_belief if vendor in info.vendors()]
        undamaged = (info for info in sources if vendor not in dict(info.closed))
        source = next(undamaged, sources[0])
        merged += [entry for entry in source.shares if entry[0] == vendor]
        closed += [entry for entry in source.closed if entry[0] == vendor]
    return msgspec.structs.replace(seen, shares=tuple(merged), closed=tuple(closed))


def _count(vendor: Vendor, container: objects.Container, problems: list[str]) -> int:
    """Return how many cards a container asks for; what is no number is a problem and counts 0."""
    amount = container.amount(vendor.resources.count)
    if amount is None:
        return 0
    try:
        what = f"container {container.name}, {vendor.resources.count}"
        return quantity.exact_integer(amount, what=what)
    except errors.WireError as error:
        problems.append(str(error))
        return 0
