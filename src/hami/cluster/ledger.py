"""The ledger: which cards each pod holds, one row per pod UID.

A row keeps what was granted to each container as the annotation says it (the *raw slots*) and is
small: pod objects are not kept. What the row costs its node (`holdings`, the collapsed view), its
namespace (`quota_use`) and kubelet (`ids`) follows from it. `read_pod` makes a row from an API
object; the tables of `hami.cluster.shelf` are sums over rows.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Iterable, Iterator, Sequence

import msgspec

from hami.cluster import phases
from hami.vendors.row import Vendor
from hami.wire import annotation_keys, errors, objects, pod_devices, quantity
from hami.wire.objects import ContainerKind


class Standing(enum.IntEnum):
    """How firm a row is."""

    #: Ours, in memory only: it lapses unless the pod is bound.
    RESERVED = 0
    #: The pod's annotations name a node, but it is not bound (HAMi writes before it binds).
    ANNOTATED = 1
    #: The API server has the pod on the node; its grants are frozen.
    BOUND = 2


class LedgerRow(msgspec.Struct, frozen=True, gc=False):
    """What one pod holds on one node. A hundred thousand of them: the collector passes them by."""

    uid: str
    namespace: str
    name: str
    node: str
    #: One per container, init containers first.
    kinds: tuple[ContainerKind, ...]
    #: (vendor word, one slot per container) for each vendor with any grant.
    slots: tuple[tuple[str, pod_devices.Slots], ...] = ()
    #: (vendor word, device ids kubelet gave or will give), foreign pods included.
    ids: tuple[tuple[str, int], ...] = ()
    standing: Standing = Standing.BOUND
    #: Whether its init containers have ended and count no more.
    init_done: bool = False
    #: When a reservation lapses, in the caller's clock.
    deadline: float = math.inf

    def holdings(self) -> Iterator[tuple[str, str, int, int, int]]:
        """Yield (vendor word, card id, slots, MiB, percent): the collapsed view."""
        for word, slots in self.slots:
            steps: dict[str, list[tuple[ContainerKind, pod_devices.Grant]]] = {}
            for kind, slot in zip(self.kinds, slots, strict=True):
                for grant in slot:
                    steps.setdefault(grant.uuid, []).append((kind, grant))
            for uuid, used in steps.items():
                yield (
                    word,
                    uuid,
                    self._peak((kind, 1) for kind, _ in used),
                    self._peak((kind, grant.memory) for kind, grant in used),
                    self._peak((kind, grant.cores) for kind, grant in used),
                )

    def quota_use(self) -> Iterator[tuple[str, int, int]]:
        """Yield (vendor word, MiB, percent) over all cards of each vendor."""
        for word, slots in self.slots:
            yield (
                word,
                self._peak(zip(self.kinds, (sum(g.memory for g in s) for s in slots), strict=True)),
                self._peak(zip(self.kinds, (sum(g.cores for g in s) for s in slots), strict=True)),
            )

    def _peak(self, steps: Iterable[tuple[ContainerKind, int]]) -> int:
        return phases.peak(steps, init_done=self.init_done)


class PodReading(msgspec.Struct, frozen=True):
    """What a pod object says: a row, or none; and what could not be read."""

    row: LedgerRow | None
    problems: tuple[str, ...] = ()


#: Few distinct container layouts exist; sharing them saves most of a row's memory.
_layouts: dict[tuple[ContainerKind, ...], tuple[ContainerKind, ...]] = {}


def read_pod(pod: objects.Pod, vendors: Sequence[Vendor]) -> PodReading:
    """Make the ledger row of a pod as the API server has it.

    A device list that does not decode is a problem of that pod alone: its device ids still count.
    """
    if pod.finished:
        return PodReading(None)
    kinds: list[ContainerKind] = []
    containers: list[objects.Container] = []
    for kind, container in pod.containers():
        kinds.append(kind)
        containers.append(container)
    problems: list[str] = []
    slots: list[tuple[str, pod_devices.Slots]] = []
    ids: list[tuple[str, int]] = []
    for vendor in vendors:
        counts = [_count(vendor, c, problems) for c in containers]
        held = phases.peak(zip(kinds, counts, strict=True))
        if held:
            ids.append((vendor.word, held))
        value = pod.annotation(vendor.annotations.allocated)
        if not value:
            continue
        try:
            what = f"pod {pod.namespace}/{pod.name}, {vendor.annotations.allocated}"
            granted = align(pod_devices.decode(value, what=what), counts)
        except errors.WireError as error:
            problems.append(str(error))
            continue
        if any(granted):
            slots.append((vendor.word, granted))
    node = pod.node_name or (pod.annotation(annotation_keys.ASSIGNED_NODE) if slots else "")
    if not node or not (slots or ids):
        return PodReading(None, tuple(problems))
    layout = tuple(kinds)
    row = LedgerRow(
        uid=pod.uid,
        namespace=pod.namespace,
        name=pod.name,
        node=node,
        kinds=_layouts.setdefault(layout, layout),
        slots=tuple(slots),
        ids=tuple(ids),
        standing=Standing.BOUND if pod.node_name else Standing.ANNOTATED,
        init_done=pod.init_done,
    )
    return PodReading(row, tuple(problems))


def merge(known: LedgerRow | None, seen: LedgerRow | None) -> LedgerRow | None:
    """Return the row of a living pod of which we know one thing and the API server shows another.

    A pod that is bound keeps the grant it was first seen with, whatever becomes of its annotations;
    only its init containers may end. A pod that is not bound keeps our reservation.
    """
    if known is None:
        return seen
    if seen is None or seen.standing is not Standing.BOUND:
        return seen if known.standing is Standing.ANNOTATED else known
    if known.standing is Standing.BOUND and known.node == seen.node and known.slots:
        return msgspec.structs.replace(known, init_done=seen.init_done)
    return seen


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


def align(slots: pod_devices.Slots, counts: Sequence[int]) -> pod_devices.Slots:
    """Give each container its slot, although the writer may have left empty slots out.

    HAMi omits the slots of containers without a card on real NVIDIA nodes. Where the list does not
    fit by position, its non-empty slots go to the containers that ask for cards, in order; where
    that does not fit either, everything counts for the last (app) container, so that
    nothing is ever given back early.
    """
    if not counts:
        return ()
    filled = [slot for slot in slots if slot]
    asking = [index for index, count in enumerate(counts) if count]
    padded = (*slots, *[()] * (len(counts) - len(slots)))
    surplus = any(padded[len(counts) :])
    if not surplus and [len(slot) for slot in padded[: len(counts)]] == list(counts):
        return padded[: len(counts)]
    aligned: list[tuple[pod_devices.Grant, ...]] = [()] * len(counts)
    if [len(slot) for slot in filled] == [counts[index] for index in asking]:
        for index, slot in zip(asking, filled, strict=True):
            aligned[index] = slot
    else:
        aligned[-1] = tuple(grant for slot in filled for grant in slot)
    return tuple(aligned)
