"""A Pod, read once: the shares that it holds, and what they cost.

A PodInfo keeps the shares of each container as the annotation lists them, and is small: pod objects
are not kept. What the pod costs its node (`allocations`), its namespace (`quota_use`) and kubelet
(`ids`) follows from it. The card table is the sum of the allocations of all pods.
"""

from __future__ import annotations

import enum
import functools
from collections.abc import Callable, Iterable, Iterator, Sequence

import msgspec

from hami.vendors.card_request import CardRequest
from hami.vendors.families import Families
from hami.vendors.family import Family
from hami.vendors.table import Vendor
from hami.wire import annotation_keys, errors, grant, objects, shares
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
_SIGNED = annotation_keys.SIGNED_DEVICES


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
    #: (vendor name, what each container asks for) of vendors without a valid grant: of these
    #: `shares` only has what the annotation says (`hami.cluster.unproven`).
    unproven: tuple[tuple[str, tuple[CardRequest | None, ...]], ...] = ()
    #: (vendor name, device ids kubelet gave or will give), also of pods that others placed.
    ids: tuple[tuple[str, int], ...] = ()
    hold: Hold = Hold.BOUND
    #: The number of the order to resize that `shares` follow; 0: there is none.
    resized: int = 0
    #: Whether the agent has answered that order: before, earlier ones may still be in force.
    answered: bool = True
    #: Whether its init containers have ended and count no more.
    init_done: bool = False

    def vendors(self) -> set[str]:
        """Return the names of the vendors whose cards it holds."""
        return {vendor for vendor, _ in (*self.shares, *self.closed, *self.unproven)}

    def allocations(self) -> Iterable[Allocation]:
        """Return what it holds of each card; a container that lists a card twice shares it once.

        What it holds without a valid grant depends on its node, and is not among them.
        """
        if (only := self._only()) is not None:
            vendor, share = only
            return (Allocation(vendor, share.card, share.slots, share.memory_mib, share.cores),)
        return self._allocations()

    def _allocations(self) -> Iterator[Allocation]:
        unproven = dict(self.unproven)
        for vendor, pod_shares in self.shares:
            if vendor in unproven:
                continue
            #: Card id -> container index -> its shares, MiB and percent there.
            cards: dict[str, dict[int, tuple[int, int, int]]] = {}
            for index, container_shares in enumerate(pod_shares):
                for share in container_shares:
                    held = cards.setdefault(share.card, {})
                    slots, memory, cores = held.get(index, (0, 0, 0))
                    held[index] = (
                        max(slots, share.slots),
                        memory + share.memory_mib,
                        cores + share.cores,
                    )
            for card, held in cards.items():
                yield Allocation(
                    vendor,
                    card,
                    *(
                        self._peak((self.kinds[index], each[part]) for index, each in held.items())
                        for part in range(3)
                    ),
                )

    def quota_use(self) -> Iterable[tuple[str, int, int]]:
        """Return (vendor name, MiB, percent) over all cards of each vendor."""
        if (only := self._only()) is not None:
            vendor, share = only
            return ((vendor, share.memory_mib, share.cores),)
        return self._quota_use()

    def _quota_use(self) -> Iterator[tuple[str, int, int]]:
        unproven = dict(self.unproven)
        for vendor, asked in unproven.items():
            yield self._asked_quota(vendor, asked)
        for vendor, pod_shares in self.shares:
            if vendor in unproven:
                continue
            memory = (sum(share.memory_mib for share in each) for each in pod_shares)
            cores = (sum(share.cores for share in each) for each in pod_shares)
            yield (
                vendor,
                self._peak(zip(self.kinds, memory, strict=True)),
                self._peak(zip(self.kinds, cores, strict=True)),
            )

    def _asked_quota(
        self, vendor: str, asked: Sequence[CardRequest | None]
    ) -> tuple[str, int, int]:
        """Add up what it asks for, or its annotation says if that is more; percentages are 0."""
        listed = dict(self.shares).get(vendor, ((),) * len(self.kinds))
        memory, cores = [], []
        for kind, request, each in zip(self.kinds, asked, listed, strict=True):
            count = request.count if request is not None else 0
            of_memory = count * request.memory if request is not None else 0
            of_cores = count * request.cores if request is not None else 0
            memory.append((kind, max(of_memory, sum(share.memory_mib for share in each))))
            cores.append((kind, max(of_cores, sum(share.cores for share in each))))
        return vendor, self._peak(memory), self._peak(cores)

    def _only(self) -> tuple[str, Share] | None:
        """Return vendor and share of a pod with one app container that has one card, as most are.

        None: it is another pod. Of a hundred thousand pods each is read at the start.
        """
        if self.kinds == _ONE_APP and len(self.shares) == 1 and not self.unproven:
            vendor, pod_shares = self.shares[0]
            if len(pod_shares) == 1 and len(pod_shares[0]) == 1:
                return vendor, pod_shares[0][0]
        return None

    def _peak(self, amounts: Iterable[tuple[ContainerKind, int]]) -> int:
        return shares.peak(amounts, init_done=self.init_done)


#: Few distinct container layouts exist; sharing them saves most of a PodInfo's memory.
_layouts: dict[tuple[ContainerKind, ...], tuple[ContainerKind, ...]] = {}


Verify = Callable[..., bool]
"""Whether our scheduler has signed a bound pod's device list, or, as a second argument, its order
to resize (`hami.wire.grant.Resize`)."""


def read_pod(
    pod: objects.Pod, families: Families, verify: Verify | None = None
) -> tuple[PodInfo | None, tuple[str, ...]]:
    """Return what a pod holds as the API server has it, and what could not be read of it.

    None: it holds nothing on any node. A device list that does not decode is a problem of that pod
    alone. What can be read of it counts; cards with an unreadable amount are closed, because it is
    unknown what is left of them. A list without a valid signature closes nothing: every user who
    may patch the pod could have written it. Nor does that of a pod that is not bound, which runs on
    no card yet. `verify` None: every list is taken as it is.
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
    unproven: list[tuple[str, tuple[CardRequest | None, ...]]] = []
    order = (0, True)
    for family in families.of_pod(pod, containers):
        vendor = family.vendor
        value = pod.annotation(vendor.annotations.allocated)
        counts = [_count(family, container, problems) for container in containers]
        if not value and not any(counts):
            continue  # most pods have nothing to do with most vendors
        held = counts[0] if len(counts) == 1 else shares.peak(zip(kinds, counts, strict=True))
        if held:
            ids.append((vendor.name, held))
        proven = _is_proven(pod, value, verify)
        if held and not proven:
            asked = (_request(family, container, problems) for container in containers)
            unproven.append((vendor.name, tuple(asked)))
        listed, unreadable = _listed(pod, vendor, value, problems)
        by_grant = verify if proven else _nothing
        listed, found_order = _resized(pod, vendor, listed, problems, by_grant)
        order = found_order or order
        by_index = not proven and len(listed) == len(counts)
        aligned = listed if by_index else shares.align(listed, counts)
        aligned = family.recorded(aligned, pod)
        if any(aligned) and (held or proven):
            found[vendor.name] = aligned
        closes = proven and pod.node_name
        closed += [(vendor.name, card) for card in unreadable if closes]
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
        unproven=tuple(unproven),
        ids=tuple(ids),
        hold=Hold.BOUND if pod.node_name else Hold.ANNOTATED,
        resized=order[0],
        answered=order[1],
        init_done=pod.init_done,
    )
    return info, tuple(problems)


def merge(known: PodInfo | None, seen: PodInfo | None) -> PodInfo | None:
    """Return what a living pod holds of which we know one thing and the API server shows another.

    A pod that is not bound keeps our reservation. One that is bound keeps, vendor by vendor, the
    shares it was first seen with, whatever becomes of its annotations; only its init containers may
    end, and an order to resize that is not older counts, with less only once it is answered. Where
    its annotation cannot be read or has no valid signature, what we reserved for it on that node
    still holds; what it listed itself before it was bound does not.
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
    unproven: list[tuple[str, tuple[CardRequest | None, ...]]] = []
    for vendor in sorted({*known.vendors(), *seen.vendors()}):
        sources = [info for info in by_belief if vendor in info.vendors()]
        source = min(sources, key=functools.partial(_doubt, vendor))
        nothing_proven = vendor in dict(source.unproven) or known.hold is Hold.ANNOTATED
        if nothing_proven and vendor in dict(seen.unproven):
            source = seen  # what is there now counts; before it was bound nothing was signed
        if seen.resized and seen.resized >= known.resized and not any(_doubt(vendor, seen)):
            source = seen if seen.answered else _with_larger(seen, known)
        merged += [entry for entry in source.shares if entry[0] == vendor]
        closed += [entry for entry in source.closed if entry[0] == vendor]
        unproven += [entry for entry in source.unproven if entry[0] == vendor]
    return msgspec.structs.replace(
        seen,
        shares=tuple(merged),
        closed=tuple(closed),
        unproven=tuple(unproven),
        resized=max(known.resized, seen.resized),
    )


def _with_larger(seen: PodInfo, known: PodInfo) -> PodInfo:
    """Return what is seen, with the amounts that were known where these are larger."""
    before = dict(known.shares)
    larger = (
        (vendor, shares.larger(before[vendor], now))
        if vendor in before and shares.same_cards(before[vendor], now)
        else (vendor, now)
        for vendor, now in seen.shares
    )
    return msgspec.structs.replace(seen, shares=tuple(larger))


def _doubt(vendor: str, info: PodInfo) -> tuple[bool, bool]:
    """Order by belief: a valid grant first, then one that can be read."""
    return vendor in dict(info.unproven), vendor in dict(info.closed)


def _is_proven(pod: objects.Pod, value: str, verify: Verify | None) -> bool:
    """Return whether a pod's cards of a vendor are what its annotation says."""
    if not pod.node_name:
        return True  # it is not signed before it is bound
    if not value:
        return False
    return verify is None or verify(pod)


def _listed(
    pod: objects.Pod, vendor: Vendor, value: str, problems: list[str]
) -> tuple[PodShares, tuple[str, ...]]:
    """Return what the annotation lists, and the cards whose amounts cannot be read."""
    if not value:
        return (), ()
    what = f"pod {pod.namespace}/{pod.name}, {vendor.annotations.allocated}"
    try:
        return shares.decode(value, what=what), ()
    except errors.WireError as error:
        problems.append(str(error))
        return shares.salvage(value)


def _nothing(*_signed: object) -> bool:
    return False


def _resized(
    pod: objects.Pod,
    vendor: Vendor,
    granted: PodShares,
    problems: list[str],
    verify: Verify | None,
) -> tuple[PodShares, tuple[int, bool] | None]:
    """Return what a pod counts with, and its order to resize: number, and if it is answered.

    That is the order, and with it what the agent's answer has: until the processes have released
    what they had, the larger amounts. The answer is not signed, so nothing counts with less than
    the order says; without an answer the grant counts as well. Orders without a number have none.
    """
    value = pod.annotation(annotation_keys.RESIZE)
    if not (value and pod.node_name and vendor.annotations.allocated == _SIGNED):
        return granted, None
    what = f"pod {pod.namespace}/{pod.name}"
    try:
        seq, devices = grant.decode_order(value, what=f"{what}, {annotation_keys.RESIZE}")
        ordered = shares.decode(devices, what=f"{what}, {annotation_keys.RESIZE}")
        order = grant.Resize(uid=pod.uid, node=pod.node_name, devices=devices, seq=seq)
        if not seq or not shares.same_cards(ordered, granted):
            return granted, None
        if verify is not None and not verify(pod, order):
            return granted, None
    except errors.WireError as error:
        problems.append(str(error))
        return granted, None
    held, answered = granted, False
    if answer := pod.annotation(annotation_keys.RESIZED):
        try:
            found = grant.Answer.decode(answer, what=f"{what}, {annotation_keys.RESIZED}")
            listed = shares.decode(found.devices, what=f"{what}, {annotation_keys.RESIZED}")
            if shares.same_cards(listed, granted):
                # The order may be an older one that was put back.
                held = listed if found.seq <= seq else shares.larger(granted, listed)
                answered = found.seq >= seq
        except errors.WireError as error:
            problems.append(str(error))
    return shares.larger(held, ordered), (seq, answered)


def _request(
    family: Family, container: objects.Container, problems: list[str]
) -> CardRequest | None:
    """Return what a container asks for; what cannot be read is a problem and counts nothing."""
    try:
        return family.request(container)
    except errors.WireError as error:
        problems.append(str(error))
        return None


def _count(family: Family, container: objects.Container, problems: list[str]) -> int:
    """Return how many cards a container asks for; what is no number is a problem and counts 0."""
    try:
        return family.count(container)
    except errors.WireError as error:
        problems.append(str(error))
        return 0
