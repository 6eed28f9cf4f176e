"""The cluster's state: nodes, pods and quotas, with the card tables in step.

State is kept, not recomputed: each event of the API server becomes one operation on the tables, so
a decision costs the same with ten placed pods and with a hundred thousand. The tables are always
the sum of the pods' allocations over the nodes' cards (`hami.cluster.self_check`).

An operation is data: it sets one thing (a node, a pod, a quota) or drops it. `Cluster.apply`
returns the operation that reverses it, which is again one of these: a log of reverses, applied last
to first, is an undo.

No I/O and no clock: the scheduler's informers call `observe_*` and `forget_*`.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence

import msgspec
import numpy as np

from hami.cluster import card_table, node_info, pod_info, quota
from hami.cluster.card_table import CardTable, Mask, width_for
from hami.cluster.node_info import NodeInfo
from hami.cluster.pod_info import Hold, PodInfo, Verify
from hami.cluster.quota import QuotaLimits
from hami.cluster.unproven import UnprovenUse
from hami.vendors.families import Families
from hami.vendors.table import Vendor
from hami.wire import objects


class PutNode(msgspec.Struct, frozen=True):
    node: NodeInfo


class DropNode(msgspec.Struct, frozen=True):
    name: str


class PutPod(msgspec.Struct, frozen=True):
    pod: PodInfo


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

    Looking up thousands of names costs as much as checking their nodes, and kube-scheduler asks
    about the same ones again and again: an answer may be kept and used again. It stays right,
    because the names are looked up again once nodes were added or deleted.
    """

    #: None is all nodes.
    names: Sequence[str] | None
    #: How often rows of nodes had changed when it was looked up.
    layout: int
    #: By width of the card table: a mask of its rows; None is all rows that hold a node.
    masks: Mapping[int, Mask] | None
    #: Names of which we know no card.
    unknown: tuple[str, ...] = ()
    #: The names without their order; empty once the answer is kept for long (`compact`).
    distinct: frozenset[str] = frozenset()
    #: Equal for equal sets of names.
    digest: int = 0


class Cluster:
    """All that a decision depends on. Only `apply` changes what nodes, pods and quotas count."""

    def __init__(self, vendors: Iterable[Vendor], *, verify: Verify | None = None) -> None:
        """Make an empty cluster; `verify` None: grants are not verified."""
        card_table.keep_freed_memory()
        self._verify = verify
        self.families = Families(vendors)
        self.vendors: Mapping[str, Vendor] = self.families.vendors
        self.quotas = quota.Quotas()
        #: How often `apply` was called: equal numbers are equal states.
        self.changes = 0
        #: By width.
        self.card_tables: dict[int, CardTable] = {}
        self._nodes: dict[str, NodeInfo] = {}
        self._pods: dict[str, PodInfo] = {}
        #: Node name -> UIDs of the pods on it, whether the node is known or not.
        self._by_node: dict[str, dict[str, None]] = {}
        #: Node name -> width << 32 | row; nodes without a card have no row.
        self._rows: dict[str, int] = {}
        #: How often rows of nodes have changed.
        self._layout = 0
        #: The last question about few nodes (True), and the last one about many.
        self._last_asked: dict[bool, Asked] = {}
        #: Names of nodes of which something does not decode.
        self._broken: dict[str, None] = {}
        #: Pod UID -> what could not be read of it; nodes and quotas keep their own.
        self._pod_problems: dict[str, tuple[str, ...]] = {}
        self._unproven = UnprovenUse(self.families)
        #: UIDs of the pods that hold a reservation.
        self._reserved: dict[str, None] = {}
        #: Pod UID -> what its annotations ask for, while it is not bound.
        self._annotated: dict[str, PodInfo] = {}

    # Events of the API server.

    def observe_node(self, node: objects.Node) -> Operation | None:
        """Take over a node as the API server has it; returns the reverse, None for no change."""
        return self.set_node(self.read_node(node))

    def read_node(self, node: objects.Node) -> NodeInfo:
        """Read the part of a Node that counts."""
        return node_info.read_node(node, self.families.values())

    def set_node(self, info: NodeInfo) -> Operation | None:
        """Take over what was read of a node; returns the reverse, None for no change."""
        known = self._nodes.get(info.name)
        return None if known is info or known == info else self.apply(PutNode(info))

    def forget_node(self, name: str) -> Operation | None:
        return self.apply(DropNode(name)) if name in self._nodes else None

    def observe_pod(self, pod: objects.Pod) -> Operation | None:
        """Take over a pod as the API server has it; returns the reverse, None for no change."""
        if not pod.uid:
            return None  # no API server shows such a pod, and its UID is what identifies it here
        seen, problems = self.read_pod(pod)
        return self.set_pod(pod.uid, seen, problems, finished=pod.finished)

    def read_pod(self, pod: objects.Pod) -> tuple[PodInfo | None, tuple[str, ...]]:
        """Read the cards that a pod holds, and what of its annotations cannot be read."""
        return pod_info.read_pod(pod, self.families, self._verify)

    def set_pod(
        self, uid: str, seen: PodInfo | None, problems: tuple[str, ...], *, finished: bool
    ) -> Operation | None:
        """Take over what was read of a pod; returns the reverse, None for no change."""
        if seen is not None and seen.hold is Hold.ANNOTATED:
            self._annotated[uid] = seen
        else:
            self._annotated.pop(uid, None)
        if problems:
            self._pod_problems[uid] = problems
        else:
            self._pod_problems.pop(uid, None)
        known = self._pods.get(uid)
        info = None if finished else pod_info.merge(known, seen)
        if info == known:
            return None
        return self.apply(DropPod(uid) if info is None else PutPod(info))

    def forget_pod(self, uid: str) -> Operation | None:
        self._pod_problems.pop(uid, None)
        self._annotated.pop(uid, None)
        return self.apply(DropPod(uid)) if uid in self._pods else None

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
    def pods(self) -> Mapping[str, PodInfo]:
        """Pods that hold cards or device ids, by UID."""
        return self._pods

    def pods_on(self, node: str) -> list[PodInfo]:
        return [self._pods[uid] for uid in self._by_node.get(node, ())]

    def problems(self) -> dict[str, tuple[str, ...]]:
        """Return what could not be read, by `node <name>`, `pod <uid>`, `quota <ns>/<name>`."""
        found = {f"pod {uid}": problems for uid, problems in self._pod_problems.items()}
        found.update({f"node {n}": i.problems for n, i in self._nodes.items() if i.problems})
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

    def slices(self, vendor: str) -> int:
        """Return into how many parts nodes cut each card of a vendor; 0: no node says."""
        cards = (info.cards.get(vendor) for info in self._nodes.values())
        return max(
            (int(found[0].custominfo.get("slices", 0)) for found in cards if found), default=0
        )

    def locate(self, node: str) -> tuple[CardTable, int] | None:
        """Return the card table and row of a node; None if it is unknown or has no card."""
        code = self._rows.get(node)
        if code is None:
            return None
        return self.card_tables[code >> _ROW_BITS], code & (1 << _ROW_BITS) - 1

    def ask(self, names: Sequence[str] | Asked | None) -> Asked:
        """Find the rows of the named nodes; None is all that have cards, or should have."""
        if isinstance(names, Asked):
            return names if names.layout == self._layout else self.ask(names.names)
        if names is None:
            without_row = tuple(name for name in self._broken if name not in self._rows)
            return Asked(None, self._layout, None, without_row)
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
            map(self._rows.get, names, itertools.repeat(-1)), dtype=np.int64, count=len(names)
        )
        widths = codes >> _ROW_BITS
        masks = {}
        for width, table in self.card_tables.items():
            mask = np.zeros(table.rows, dtype=np.bool_)
            mask[codes[widths == width] & (1 << _ROW_BITS) - 1] = True
            masks[width] = mask
        unknown = tuple(itertools.compress(names, codes < 0)) if (codes < 0).any() else ()
        self._last_asked[few] = Asked(names, self._layout, masks, unknown, distinct, hash(distinct))
        return self._last_asked[few]

    def compact(self, asked: Asked) -> Asked:
        """Return a question as it is kept for long: names are shared with the nodes."""
        asked = self.ask(asked)
        names = list(asked.unknown)
        for width, mask in (asked.masks or {}).items():
            names += itertools.compress(self.card_tables[width].names, mask.tolist())
        return msgspec.structs.replace(asked, names=names, unknown=(), distinct=frozenset())

    def asks_about(self, asked: Asked, node: str) -> bool:
        """Return whether a question that is current (`ask`) is about a node with cards."""
        located = self.locate(node)
        if located is None:
            return False
        table, row = located
        return asked.masks is None or bool(asked.masks[table.width][row])

    # Changes.

    def apply(self, operation: Operation) -> Operation:
        """Make one change and return the one that reverses it."""
        self.changes += 1
        match operation:
            case PutPod(pod):  # first, because there are by far the most
                return self._set_pod(pod.uid, pod)
            case DropPod(uid):
                return self._set_pod(uid, None)
            case PutNode(node):
                return self._set_node(node.name, node)
            case DropNode(name):
                return self._set_node(name, None)
            case PutQuota(limits):
                return self._set_quota(limits.namespace, limits.name, limits)
            case DropQuota(namespace, name):
                return self._set_quota(namespace, name, None)

    def _set_node(self, name: str, info: NodeInfo | None) -> Operation:
        before = self._nodes.pop(name, None)
        self._broken.pop(name, None)
        if info is not None:
            self._nodes[name] = info
            if info.problems:
                self._broken[name] = None
        self._set_row(name, before, info)
        self._unproven.clear(name)  # with all else in the row
        for pod in self.pods_on(name):
            self._count(pod, +1)
        self._unproven.count(info, self.locate(name), self._pods)
        return DropNode(name) if before is None else PutNode(before)

    def _set_row(self, name: str, before: NodeInfo | None, info: NodeInfo | None) -> None:
        """Give a node its row in a card table, with nothing used on it."""
        located = self.locate(name)
        width = width_for(info.widest) if info is not None and info.cards else 0
        if located is not None and before is not None:
            table, row = located
            if info is not None and table.width == width:
                table.replace(row, before, info)
                return
            table.remove(row, before)
            del self._rows[name]
        self._layout += 1
        if info is not None and width:
            if width not in self.card_tables:
                self.card_tables[width] = CardTable(width, tuple(self.vendors))
            self._rows[name] = width << _ROW_BITS | self.card_tables[width].add(info)

    def _set_pod(self, uid: str, info: PodInfo | None) -> Operation:
        before = self._pods.pop(uid, None)
        self._reserved.pop(uid, None)
        nodes = self._unproven.nodes_of(before, info)
        for node in nodes:
            self._unproven.uncount(node, self.locate(node))
        if before is not None:
            self._count(before, -1)
            self._charge(before, -1)
            on_node = self._by_node[before.node]
            del on_node[uid]
            if not on_node:
                del self._by_node[before.node]
            self._unproven.drop(before)
        if info is not None:
            self._pods[uid] = info
            if info.hold is Hold.RESERVED:
                self._reserved[uid] = None
            self._by_node.setdefault(info.node, {})[uid] = None
            self._unproven.put(info)
            self._count(info, +1)
            self._charge(info, +1)
        for node in nodes:
            self._unproven.count(self._nodes.get(node), self.locate(node), self._pods)
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

    def _count(self, pod: PodInfo, sign: int) -> None:
        """Add a pod to its node's row, or take it out. Unknown nodes and cards count later."""
        located = self.locate(pod.node)
        if located is None:
            return
        table, row = located
        for allocation in pod.allocations():
            table.use(row, allocation, sign)
        for vendor, card in pod.closed:
            table.close(row, vendor, card, sign)
        for vendor, ids in pod.ids:
            table.hold_ids(row, vendor, sign * ids)

    def _charge(self, pod: PodInfo, sign: int) -> None:
        for vendor, memory, cores in pod.quota_use():
            self.quotas.add_use(pod.namespace, vendor, memory=sign * memory, cores=sign * cores)
