"""The cluster at one moment, copied in a millisecond, for metrics.

Writing the metrics of a large cluster takes seconds of wall time, in slices between which the
cluster changes. A snapshot copies the numbers that change (a few arrays) and the lists of what
exists; nodes and pods themselves are never changed in place, so they are not copied. All samples of
one scrape are then of one moment.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Literal

import msgspec
import numpy as np

from hami.cluster.card_table import Cards, CardTable, Ints
from hami.cluster.node_info import NodeInfo
from hami.cluster.pod_info import PodInfo
from hami.cluster.state import Cluster
from hami.wire.node_register import RegisteredCard

Column = Literal["used", "memory", "cores"]
"""Of a card: containers that share it, MiB and percent in use; reservations count."""

#: Rows whose numbers become Python's at one time.
_ROWS = 64


class NodeUse(msgspec.Struct, frozen=True, gc=False):
    """The cards of one node together."""

    name: str
    #: MiB that containers can be given, and that they have.
    memory_limit: int
    memory: int
    #: Shares of containers.
    used: int


class ClusterUse(msgspec.Struct, frozen=True):
    """The cards of all nodes together; memory in MiB."""

    cards: int
    memory_limit: int
    memory: int
    used: int


class _Table(msgspec.Struct, frozen=True):
    """One card table; `""` is a row without a node."""

    names: Sequence[str]
    #: By vendor name, then by column: (node, card).
    cards: Mapping[str, Mapping[Column, Ints]]
    card_count: int
    memory_limit: Ints
    memory: Ints
    used: Ints


class Snapshot:
    """Copies of what metrics show."""

    def __init__(self, cluster: Cluster, *, with_pods: bool) -> None:
        self.vendors = cluster.vendors
        self.nodes: Mapping[str, NodeInfo] = dict(cluster.nodes)
        #: Pods that hold cards; none of them if the caller does not want any.
        self.pods: Sequence[PodInfo] = list(cluster.pods.values()) if with_pods else ()
        self._tables = [_copied(table) for table in cluster.card_tables.values()]
        #: (namespace, vendor name) -> MiB and percent in use.
        self.quota_used = dict(cluster.quotas.all_used())
        #: (namespace, resource) -> the tightest limit, in its own unit.
        self.quota_limits: dict[tuple[str, str], int] = {}
        for quota in cluster.quotas.all_limits().values():
            for resource, limit in quota.limits.items():
                key = (quota.namespace, resource)
                self.quota_limits[key] = min(limit, self.quota_limits.get(key, limit))

    def card_numbers(self, column: Column) -> Iterator[tuple[str, RegisteredCard, int]]:
        """Yield (node, card, number) for all cards."""
        for table in self._tables:
            for first in range(0, len(table.names), _ROWS):
                rows = slice(first, first + _ROWS)
                numbers = {v: columns[column][rows].tolist() for v, columns in table.cards.items()}
                for at, name in enumerate(table.names[rows]):
                    if not name:
                        continue
                    for vendor, cards in self.nodes[name].cards.items():
                        for card, number in zip(cards, numbers[vendor][at], strict=False):
                            yield name, card, number

    def node_use(self) -> Iterator[NodeUse]:
        """Yield the sums of every node that has cards."""
        for table in self._tables:
            for first in range(0, len(table.names), _ROWS):
                rows = slice(first, first + _ROWS)
                columns = (table.memory_limit, table.memory, table.used)
                numbers = [column[rows].tolist() for column in columns]
                for name, limit, memory, used in zip(table.names[rows], *numbers, strict=True):
                    if name:
                        yield NodeUse(name, limit, memory, used)

    def cluster_use(self) -> ClusterUse:
        def total(column: str) -> int:
            return sum(int(getattr(table, column).sum()) for table in self._tables)

        cards = sum(table.card_count for table in self._tables)
        return ClusterUse(cards, total("memory_limit"), total("memory"), total("used"))


def share_count(cluster: Cluster) -> int:
    """Return how many shares containers have of all cards; quick, for every scrape."""
    return sum(int(table.totals.used.sum()) for table in cluster.card_tables.values())


def _copied(table: CardTable) -> _Table:
    rows, totals = slice(0, table.rows), table.totals
    return _Table(
        names=table.names,  # replaced when it changes, never changed
        cards={vendor: _columns(cards, rows) for vendor, cards in table.cards.items()},
        card_count=sum(int(ids.cards.sum()) for ids in table.ids.values()),
        memory_limit=totals.memory[rows].copy(),
        memory=totals.memory_used[rows].copy(),
        used=totals.used[rows].copy(),
    )


def _columns(cards: Cards, rows: slice) -> Mapping[Column, Ints]:
    return {
        "used": np.ascontiguousarray(cards.used[:, rows].T),
        "memory": np.ascontiguousarray((cards.memory[:, rows] - cards.memory_left[:, rows]).T),
        "cores": np.ascontiguousarray((cards.cores[:, rows] - cards.cores_left[:, rows]).T),
    }
