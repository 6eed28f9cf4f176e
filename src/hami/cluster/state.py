"""The cluster's state: nodes, pods and quotas, with the card tables in step.

Changes of the cluster, as data.
Each operation sets one thing (a node, a ledger row, a quota) or drops it. `Cluster.apply` returns
the operation that reverses it, which is again one of these: a log of reverses, applied last to
first, is an undo.

What the cluster is now: nodes, ledger and quota, with the tables kept in step.
State is kept, not recomputed: each event of the API server becomes one operation on the tables, so
a decision costs the same with ten placed pods and with a hundred thousand. The tables are always
the sum of the ledger's rows over the nodes' cards; `hami.cluster.drift` rebuilds them from scratch
to prove it. No I/O and no clock: whoever watches the API server calls `observe_*` and `forget_*`.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence

import msgspec
import numpy as np
import numpy.typing as npt

from hami.cluster import card_table, node_info, pod_info, quota
from hami.cluster.card_table import CardTable, width_for
from hami.cluster.node_info import NodeInfo
from hami.cluster.pod_info import Allocation, PodInfo, PodReading
from hami.cluster.quota import QuotaLimits
from hami.vendors.table import Vendor
from hami.wire import objects


class PutNode(msgspec.Struct, frozen=True):
    facts: NodeInfo


class DropNode(msgspec.Struct, frozen=True):
    name: str


class PutPod(msgspec.Struct, frozen=True):
    row: PodInfo


class DropPod(msgspec.Struct, frozen=True):
    uid: str


class PutQuota(msgspec.Struct, frozen=True):
    limits: QuotaLimits


class DropQuota(msgspec.Struct, frozen=True):
    namespace: str
    name: str


Operation = PutNode | DropNode | PutPod | DropPod | PutQuota | DropQuota


_ROW_BITS = 32
#: So many names are looked up in no time, and must not displace the question about all nodes.
_FEW = 16


class Asked(msgspec.Struct, frozen=True):
    """Which of the known nodes a question is about.

    Looking up thousands of names costs as much as judging their nodes, and kube-scheduler asks
    about the same ones again and again: an answer may be kept and used again. It stays right,
    because it is looked up anew once nodes have come or gone.
    """

    #: None is all nodes.
    names: Sequence[str] | None
    #: How often places of nodes had changed when it was looked up.
    layout: int
    #: One mask of rows per shelf; None is all rows that hold a node.
    masks: Mapping[int, npt.NDArray[np.bool_]] | None
    #: Names of which we know no card.
    unknown: tuple[str, ...] = ()
    #: The names without their order.
    distinct: frozenset[str] = frozenset()


class Cluster:
    """The aggregate. `apply` is the only way to change what nodes, rows and quotas count."""

    def __init__(self, vendors: Iterable[Vendor]) -> None:
        card_table.keep_freed_memory()
        self.vendors: Mapping[str, Vendor] = {vendor.word: vendor for vendor in vendors}
        self.quotas = quota.Quotas()
        #: By width.
        self.shelves: dict[int, CardTable] = {}
        self._nodes: dict[str, NodeInfo] = {}
        self._rows: dict[str, PodInfo] = {}
        #: Node name -> UIDs of the rows on it, whether the node is known or not.
        self._by_node: dict[str, dict[str, None]] = {}
        #: Node name -> width << 32 | row; nodes without a card have no place.
        self._places: dict[str, int] = {}
        #: How often places of nodes have changed.
        self._layout = 0
        #: The last question about few nodes (True), and the last one about many.
        self._last_asked: dict[bool, Asked] = {}
        #: Names of nodes of which something does not decode.
        self._broken: dict[str, None] = {}
        #: Pod UID -> what could not be read of it; nodes and quotas keep their own.
        self._pod_problems: dict[str, tuple[str, ...]] = {}
        #: UIDs of the rows that are reservations.
        self._reserved: dict[str, None] = {}
        #: Pod UID -> the row its annotations ask for, while it is not bound.
        self._annotated: dict[str, PodInfo] = {}

    # Events of the API server.

    def observe_node(self, node: objects.Node) -> Operation | None:
        """Take over a node as the API server has it; returns the reverse, None for no change."""
        return self.set_node(self.read_node(node))

    def read_node(self, node: objects.Node) -> NodeInfo:
        """Return what counts of a node."""
        return node_info.read_node(node, tuple(self.vendors.values()))

    def set_node(self, info: NodeInfo) -> Operation | None:
        """Take over what was read of a node; returns the reverse, None for no change."""
        known = self._nodes.get(info.name)
        return None if known is info or known == info else self.apply(PutNode(info))

    def forget_node(self, name: str) -> Operation | None:
        return self.apply(DropNode(name)) if name in self._nodes else None

    def observe_pod(self, pod: objects.Pod) -> Operation | None:
        """Take over a pod as the API server has it; returns the reverse, None for no change."""
        if not pod.uid:
            return None  # no API server shows such a pod; without a UID it could not be told apart
        return self.set_pod(pod.uid, self.read_pod(pod), finished=pod.finished)

    def read_pod(self, pod: objects.Pod) -> PodReading:
        """Return what counts of a pod."""
        return pod_info.read_pod(pod, tuple(self.vendors.values()))

    def set_pod(self, uid: str, reading: PodReading, *, finished: bool) -> Operation | None:
        """Take over what was read of a pod; returns the reverse, None for no change."""
        if reading.row is not None and reading.row.hold is Allocation.ANNOTATED:
            self._annotated[uid] = reading.row
        else:
            self._annotated.pop(uid, None)
        if reading.problems:
            self._pod_problems[uid] = reading.problems
        else:
            self._pod_problems.pop(uid, None)
        known = self._rows.get(uid)
        row = None if finished else pod_info.merge(known, reading.row)
        if row == known:
            return None
        return self.apply(DropPod(uid) if row is None else PutPod(row))

    def forget_pod(self, uid: str) -> Operation | None:
        self._pod_problems.pop(uid, None)
        self._annotated.pop(uid, None)
        return self.apply(DropPod(uid)) if uid in self._rows else None

    def lapse(self, uid: str) -> Operation | None:
        """Give up a reservation; what the pod's own annotations ask for counts again."""
        if uid not in self._reserved:
            return None
        annotated = self._annotated.get(uid)
        if annotated is None:
            return self.apply(DropPod(uid))
        return self.apply(PutPod(annotated))

    def observe_quota(self, observed: objects.ResourceQuota) -> Operation | None:
        return self.set_quota(self.read_quota(observed))

    def read_quota(self, observed: objects.ResourceQuota) -> QuotaLimits:
        """Return the limits of a quota that count."""
        return quota.read_quota(observed, self.vendors.values())

    def set_quota(self, limits: QuotaLimits) -> Operation | None:
        """Take over the limits of a quota; returns the reverse, None for no change."""
        if self.quotas.get(limits.namespace, limits.name) == limits:
            return None
        return self.apply(PutQuota(limits))

    def forget_quota(self, namespace: str, name: str) -> Operation | None:
        if self.quotas.get(namespace, name) is None:
            return None
        return self.apply(DropQuota(namespace, name))

    # Questions.

    @property
    def nodes(self) -> Mapping[str, NodeInfo]:
        return self._nodes

    @property
    def rows(self) -> Mapping[str, PodInfo]:
        return self._rows

    def rows_on(self, node: str) -> list[PodInfo]:
        return [self._rows[uid] for uid in self._by_node.get(node, ())]

    def lapsed(self, now: float) -> list[str]:
        """Return the UIDs of reservations whose deadline has passed."""
        return [uid for uid in self._reserved if self._rows[uid].deadline <= now]

    def problems(self) -> dict[str, tuple[str, ...]]:
        """Return what could not be read, by `node <name>`, `pod <uid>`, `quota <ns>/<name>`."""
        found = {f"pod {uid}": told for uid, told in self._pod_problems.items()}
        found.update({f"node {n}": f.problems for n, f in self._nodes.items() if f.problems})
        for limits in self.quotas.all_limits().values():
            if limits.problems:
                found[f"quota {limits.namespace}/{limits.name}"] = limits.problems
        return found

    def broken(self, among: Sequence[str] | None) -> dict[str, str]:
        """Return what does not decode of the named nodes; None is all nodes."""
        if not self._broken:
            return {}
        names = self._broken if among is None else set(among)
        return {name: self._nodes[name].problems[0] for name in self._broken if name in names}

    def place(self, node: str) -> tuple[CardTable, int] | None:
        """Return the shelf and row of a node; None if it is unknown or has no card."""
        code = self._places.get(node)
        if code is None:
            return None
        return self.shelves[code >> _ROW_BITS], code & (1 << _ROW_BITS) - 1

    def snapshot(self) -> dict[tuple[int, str], npt.NDArray[np.generic]]:
        """Copy all tables, for comparison."""
        return {
            (width, name): array
            for width, shelf in self.shelves.items()
            for name, array in shelf.snapshot().items()
            if array.size
        }

    def ask(self, names: Sequence[str] | Asked | None) -> Asked:
        """Find the rows of the named nodes; None is all that have cards, or should have."""
        if isinstance(names, Asked):
            return names if names.layout == self._layout else self.ask(names.names)
        if names is None:
            unplaced = tuple(name for name in self._broken if name not in self._places)
            return Asked(None, self._layout, None, unplaced)
        few = len(names) <= _FEW
        last = self._last_asked.get(few)
        if last is not None and last.layout != self._layout:
            last = None
        # Comparing with the last question is cheap, and over at the first other name.
        if last is not None and last.names == names:
            return last
        # kube-scheduler names the same nodes in another order each time.
        distinct = frozenset(names)
        if last is not None and last.distinct == distinct:
            return last
        names = list(names)  # the caller's may change
        codes = np.fromiter(
            map(self._places.get, names, itertools.repeat(-1)), dtype=np.int64, count=len(names)
        )
        widths = codes >> _ROW_BITS
        masks = {}
        for width, shelf in self.shelves.items():
            mask = np.zeros(shelf.rows, dtype=np.bool_)
            mask[codes[widths == width] & (1 << _ROW_BITS) - 1] = True
            masks[width] = mask
        unknown = tuple(itertools.compress(names, codes < 0)) if (codes < 0).any() else ()
        self._last_asked[few] = Asked(names, self._layout, masks, unknown, distinct)
        return self._last_asked[few]

    # Changes.

    def apply(self, operation: Operation) -> Operation:
        """Make one change and return the one that reverses it."""
        match operation:
            case PutNode(facts):
                return self._set_node(facts.name, facts)
            case DropNode(name):
                return self._set_node(name, None)
            case PutPod(row):
                return self._set_row(row.uid, row)
            case DropPod(uid):
                return self._set_row(uid, None)
            case PutQuota(limits):
                return self._set_quota(limits.namespace, limits.name, limits)
            case DropQuota(namespace, name):
                return self._set_quota(namespace, name, None)

    def _set_node(self, name: str, facts: NodeInfo | None) -> Operation:
        before = self._nodes.pop(name, None)
        self._broken.pop(name, None)
        if facts is not None:
            self._nodes[name] = facts
            if facts.problems:
                self._broken[name] = None
        self._set_place(name, before, facts)
        for row_on_it in self.rows_on(name):
            self._count(row_on_it, +1)
        return DropNode(name) if before is None else PutNode(before)

    def _set_place(self, name: str, before: NodeInfo | None, facts: NodeInfo | None) -> None:
        """Give a node its place in the tables, with nothing used on it."""
        place = self.place(name)
        width = width_for(facts.widest) if facts is not None and facts.cards else 0
        if place is not None and before is not None:
            shelf, row = place
            if facts is not None and shelf.width == width:
                shelf.replace(row, before, facts)
                return
            shelf.remove(row, before)
            del self._places[name]
        self._layout += 1
        if facts is not None and width:
            if width not in self.shelves:
                self.shelves[width] = CardTable(width, tuple(self.vendors))
            self._places[name] = width << _ROW_BITS | self.shelves[width].add(facts)

    def _set_row(self, uid: str, row: PodInfo | None) -> Operation:
        before = self._rows.pop(uid, None)
        self._reserved.pop(uid, None)
        if before is not None:
            self._count(before, -1)
            self._charge(before, -1)
            on_node = self._by_node[before.node]
            del on_node[uid]
            if not on_node:
                del self._by_node[before.node]
        if row is not None:
            self._rows[uid] = row
            if row.hold is Allocation.RESERVED:
                self._reserved[uid] = None
            self._by_node.setdefault(row.node, {})[uid] = None
            self._count(row, +1)
            self._charge(row, +1)
        return DropPod(uid) if before is None else PutPod(before)

    def _set_quota(self, namespace: str, name: str, limits: quota.QuotaLimits | None) -> Operation:
        before = self.quotas.get(namespace, name)
        if limits is None:
            self.quotas.drop(namespace, name)
        else:
            self.quotas.put(limits)
        if before is None:
            return DropQuota(namespace, name)
        return PutQuota(before)

    def _count(self, row: PodInfo, sign: int) -> None:
        """Add a ledger row to its node's tables, or take it out. Unknown nodes and cards wait."""
        place = self.place(row.node)
        if place is None:
            return
        shelf, at = place
        for word, card, slots, memory, cores in row.holdings():
            shelf.use(at, word, card, slots=sign * slots, memory=sign * memory, cores=sign * cores)
        for word, card in row.closed:
            shelf.close(at, word, card, sign)
        for word, ids in row.ids:
            shelf.hold_ids(at, word, sign * ids)

    def _charge(self, row: PodInfo, sign: int) -> None:
        for word, memory, cores in row.quota_use():
            self.quotas.add_use(row.namespace, word, memory=sign * memory, cores=sign * cores)
