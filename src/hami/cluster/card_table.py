"""The card table: every card of many nodes as numpy columns.

One table holds nodes of similar width (number of cards of one vendor), so that one node with 56 MIG
cards does not make every eight-card node seven times as wide. Arrays have shape (card, node): a
node is a column of numbers, and one operation over an array checks the same card position of all
nodes at once. `hami.placement.fit` reads the arrays; only `hami.cluster.state` changes them.

Every node owns a row, a number within its table, the same for all vendors. Freed rows are used
again, the last freed first, so that undoing changes in reverse order restores the tables bit by
bit.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from hami.cluster.node_info import NodeInfo
from hami.cluster.pod_info import Allocation
from hami.wire.node_register import RegisteredCard

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Flags = npt.NDArray[np.uint8]
Mask = npt.NDArray[np.bool_]

# Refusals that do not depend on use, in the order in which they are reported. Placement adds bits.
ABSENT = 1
NOT_HEALTHY = 2
CORDONED = 4

_NARROWEST = 8
_FIRST_CAPACITY = 16


def width_for(cards: int) -> int:
    """Return the width of the table for a node with this many cards: 8, 16, 32, ..."""
    width = _NARROWEST
    while width < cards:
        width *= 2
    return width


class CardTable:
    """The tables of all nodes of one width."""

    def __init__(self, width: int, vendors: Sequence[str]) -> None:
        self.width = width
        self.capacity = _FIRST_CAPACITY
        #: By vendor name; only of vendors that have a card here.
        self.cards: dict[str, Cards] = {}
        self.ids = {vendor: Ids((self.capacity,)) for vendor in vendors}
        self.totals = Totals((self.capacity,))
        #: Names by row; "" is a free row. Replaced, never changed: explanations keep the old list.
        self.names: list[str] = []
        self._free: list[int] = []
        self._name_ranks: Ints | None = None

    @property
    def rows(self) -> int:
        """How many rows are in use or free for use again; the rest of the arrays is spare."""
        return len(self.names)

    @property
    def name_ranks(self) -> Ints:
        """Rank of each row's name in alphabetical order, which decides between equal nodes."""
        if self._name_ranks is None:
            self._name_ranks = np.empty(self.rows, dtype=np.int64)
            order = sorted(range(self.rows), key=self.names.__getitem__)
            self._name_ranks[order] = np.arange(self.rows)
        return self._name_ranks

    def add(self, info: NodeInfo) -> int:
        """Put a node into the table, nothing used, and return its row."""
        if self._free:
            row = self._free.pop()
            self.names = [*self.names[:row], info.name, *self.names[row + 1 :]]
        else:
            row = len(self.names)
            if row == self.capacity:
                self._grow()
            self.names = [*self.names, info.name]
        self._name_ranks = None
        self._fill(row, info)
        return row

    def remove(self, row: int, info: NodeInfo) -> None:
        """Take a node out of the table, with all that is used on it."""
        self._empty(row, info)
        self.names = [*self.names[:row], "", *self.names[row + 1 :]]
        self._name_ranks = None
        self._free.append(row)

    def replace(self, row: int, before: NodeInfo, info: NodeInfo) -> None:
        """Change a node in its row, with nothing used on it."""
        self._empty(row, before)
        self._fill(row, info)

    def _fill(self, row: int, info: NodeInfo) -> None:
        self.totals.occupied[row] = 1
        for vendor, registered in info.cards.items():
            if vendor not in self.cards:
                self.cards[vendor] = Cards(self.width, self.capacity)
            self.cards[vendor].put(row, registered, info.cordoned.get(vendor, frozenset()))
            self.ids[vendor].cards[row] = len(registered)
            self.totals.count[row] += sum(card.count for card in registered)
            self.totals.memory[row] += sum(card.devmem for card in registered)
            self.totals.cores[row] += sum(card.devcore for card in registered)
        for vendor, offered in info.allocatable.items():
            self.ids[vendor].offered[row] = offered

    def _empty(self, row: int, info: NodeInfo) -> None:
        for vendor, registered in info.cards.items():
            self.cards[vendor].remove(row, registered)
        for arrays in (self.totals, *self.ids.values()):
            arrays.clear(row)

    def use(self, row: int, allocation: Allocation, sign: int) -> None:
        """Add (or with sign -1 return) what a pod holds of a card, if the node has the card."""
        found = self._find(row, allocation.vendor, allocation.card)
        if found is None:
            return
        cards, cell = found
        share_count = sign * allocation.share_count
        memory, cores = sign * allocation.memory, sign * allocation.cores
        cards.used[cell] += share_count
        cards.memory_left[cell] -= memory
        cards.cores_left[cell] -= cores
        self.totals.used[row] += share_count
        self.totals.memory_used[row] += memory
        self.totals.cores_used[row] += cores

    def close(self, row: int, vendor: str, card: str, pods: int) -> None:
        """Count one pod more (or with a negative number less) that closes a card of the node."""
        found = self._find(row, vendor, card)
        if found is None:
            return
        cards, cell = found
        cards.closed[cell] = cards.closed.get(cell, 0) + pods
        if not cards.closed[cell]:
            del cards.closed[cell]

    def _find(self, row: int, vendor: str, card: str) -> tuple[Cards, tuple[int, int]] | None:
        cards = self.cards.get(vendor)
        column = cards.column(row, card) if cards is not None else None
        return None if cards is None or column is None else (cards, (column, row))

    def hold_ids(self, row: int, vendor: str, ids: int) -> None:
        """Add (or with a negative number return) card ids."""
        self.ids[vendor].held[row] += ids

    def numbers(self, row: int, info: NodeInfo) -> Iterator[tuple[str, object]]:
        """Yield all that the tables hold of one node, by name, for comparison with other tables."""
        # Each table has its own numbers of texts: compared are the texts.
        texts = ("type_number", "mode_number")
        for group, arrays in self.groups(info.cards):
            for name in arrays.names:
                if name not in texts:
                    yield f"{group} {name}", getattr(arrays, name)[..., row].tolist()
        for vendor, registered in info.cards.items():
            cards = self.cards[vendor]
            for name, column in zip(texts, (cards.types, cards.modes), strict=True):
                numbers = getattr(cards, name)[:, row].tolist()
                yield f"cards {vendor} {name}", [column.texts[number] for number in numbers]
            yield f"cards {vendor} cells", [cards.column(row, card.id) for card in registered]
            closed = {cell[0]: pods for cell, pods in cards.closed.items() if cell[1] == row}
            rows = (cards.mixed, cards.uneven, cards.unscored)
            yield f"cards {vendor} other", (closed, *(row in each for each in rows))

    def groups(self, vendors: Iterable[str]) -> Iterator[tuple[str, _Arrays]]:
        """Yield all arrays by name, of cards those of the named vendors."""
        yield "totals", self.totals
        for vendor, ids in self.ids.items():
            yield f"ids {vendor}", ids
        for vendor in vendors:
            yield f"cards {vendor}", self.cards[vendor]

    def _grow(self) -> None:
        self.capacity *= 2
        for arrays in (self.totals, *self.ids.values(), *self.cards.values()):
            arrays.grow(self.capacity)


class _Arrays:
    """Arrays whose last axis is the node; they grow together."""

    names: ClassVar[tuple[str, ...]]

    def __init__(self, shape: tuple[int, ...]) -> None:
        for name in self.names:
            setattr(self, name, self._blank(name, shape))

    def grow(self, capacity: int) -> None:
        for name in self.names:
            old = getattr(self, name)
            new = self._blank(name, (*old.shape[:-1], capacity))
            new[..., : old.shape[-1]] = old
            setattr(self, name, new)

    def clear(self, row: int) -> None:
        for name in self.names:
            getattr(self, name)[..., row] = self._blank(name, ())

    def _blank(self, name: str, shape: tuple[int, ...]) -> npt.NDArray[np.generic]:
        """Return an array without any node."""
        if name == "refused":
            return np.full(shape, ABSENT, dtype=np.uint8)
        if name.endswith("_divisor"):
            return np.ones(shape, dtype=np.float64)
        return np.zeros(shape, dtype=np.int64)


class Cards(_Arrays):
    """One vendor's cards on the nodes of one table."""

    names = (
        *("refused", "count", "used", "memory", "memory_left", "cores", "cores_left"),
        *("count_divisor", "memory_divisor", "cores_divisor"),
        *("numa_rank", "type_number", "mode_number"),
    )
    #: (card, node): refusals that do not depend on use, as bits; ABSENT where there is no card.
    refused: Flags
    #: (card, node): shares, at most and used; MiB and percent, in total and left; below 0 is
    #: overdrawn.
    count: Ints
    used: Ints
    memory: Ints
    memory_left: Ints
    cores: Ints
    cores_left: Ints
    #: (card, node): the totals to divide by in scores: 1 in place of 0.
    count_divisor: Floats
    memory_divisor: Floats
    cores_divisor: Floats
    #: (card, node): rank of the card's NUMA node among those of its machine, ascending from 0.
    numa_rank: Ints
    #: (card, node): numbers into `types` and `modes`.
    type_number: Ints
    mode_number: Ints

    def __init__(self, width: int, capacity: int) -> None:
        super().__init__((width, capacity))
        self.types = _Texts()
        self.modes = _Texts()
        #: Card id -> its (row, card position); more than one only if two nodes claim the same card.
        self.cells: dict[str, tuple[tuple[int, int], ...]] = {}
        #: (card position, row) -> how many pods hold the card with an amount that cannot be read.
        self.closed: dict[tuple[int, int], int] = {}
        #: Rows of nodes whose cards have different memory.
        self.mixed: set[int] = set()
        #: Rows of nodes whose cards have different compute or modes.
        self.uneven: set[int] = set()
        #: Rows of nodes with a card without shares, memory or cores, which has no score.
        self.unscored: set[int] = set()

    def put(self, row: int, registered: Sequence[RegisteredCard], cordoned: frozenset[str]) -> None:
        if len({card.devmem for card in registered}) > 1:
            self.mixed.add(row)
        if len({(card.devcore, card.mode) for card in registered}) > 1:
            self.uneven.add(row)
        ranks = {numa: rank for rank, numa in enumerate(sorted({d.numa for d in registered}))}
        for column, card in enumerate(registered):
            cell = column, row
            self.refused[cell] = (0 if card.health else NOT_HEALTHY) | (
                CORDONED if card.id in cordoned else 0
            )
            self.count[cell] = card.count
            self.memory[cell] = self.memory_left[cell] = card.devmem
            self.cores[cell] = self.cores_left[cell] = card.devcore
            self.count_divisor[cell] = card.count or 1
            self.memory_divisor[cell] = card.devmem or 1
            self.cores_divisor[cell] = card.devcore or 1
            if not (card.count and card.devmem and card.devcore):
                self.unscored.add(row)
            self.numa_rank[cell] = ranks[card.numa]
            self.type_number[cell] = self.types.add(card.type)
            self.mode_number[cell] = self.modes.add(card.mode)
            self.cells[card.id] = (*self.cells.get(card.id, ()), (row, column))

    def remove(self, row: int, registered: Sequence[RegisteredCard]) -> None:
        self.closed = {cell: pods for cell, pods in self.closed.items() if cell[1] != row}
        for card in reversed(registered):  # so that putting them back finds the same numbers
            self.types.drop(card.type)
            self.modes.drop(card.mode)
            left = tuple(cell for cell in self.cells[card.id] if cell[0] != row)
            if left:
                self.cells[card.id] = left
            else:
                del self.cells[card.id]
        self.mixed.discard(row)
        self.uneven.discard(row)
        self.unscored.discard(row)
        self.clear(row)

    def column(self, row: int, card: str) -> int | None:
        """Return the position of a card on the node of `row`."""
        for at, column in self.cells.get(card, ()):
            if at == row:
                return column
        return None


class Ids(_Arrays):
    """Device ids of one vendor that kubelet offers on each node, and that pods hold."""

    names = ("cards", "offered", "held")
    #: (node): cards of the vendor.
    cards: Ints
    offered: Ints
    held: Ints


class Totals(_Arrays):
    """Sums over all cards of all vendors of each node, for the node score."""

    names = ("occupied", "count", "used", "memory", "memory_used", "cores", "cores_used")
    #: (node): 1 where the row holds a node.
    occupied: Ints
    count: Ints
    used: Ints
    memory: Ints
    memory_used: Ints
    cores: Ints
    cores_used: Ints


class _Texts:
    """Numbers for the few distinct texts of a column; 0, where there is no card, is empty.

    Texts that no card has any more are forgotten, because every decision reads all of them.
    """

    def __init__(self) -> None:
        #: By number; "" where a number is free.
        self.texts: list[str] = [""]
        self._numbers: dict[str, int] = {"": 0}
        self._cards: dict[str, int] = {}
        self._free: list[int] = []

    def find(self, text: str) -> int | None:
        """Return the number of a text; None if no card has it."""
        return self._numbers.get(text)

    def add(self, text: str) -> int:
        """Return the number of a text that one more card has."""
        self._cards[text] = self._cards.get(text, 0) + 1
        if text not in self._numbers:
            if self._free:
                self._numbers[text] = self._free.pop()
                self.texts[self._numbers[text]] = text
            else:
                self._numbers[text] = len(self.texts)
                self.texts.append(text)
        return self._numbers[text]

    def drop(self, text: str) -> None:
        """Count one card less with this text."""
        self._cards[text] -= 1
        if not self._cards[text]:
            del self._cards[text]
            if text:
                number = self._numbers.pop(text)
                self.texts[number] = ""
                self._free.append(number)


#: Just below what glibc takes as the highest threshold.
_BLOCK_BYTES = 31 * 2**20


def keep_freed_memory() -> None:
    """Let the process reuse freed memory up to some tens of MiB instead of returning it.

    A decision on thousands of nodes makes some dozen arrays of a few hundred KiB and drops them.
    By default glibc returns such memory to the kernel each time, and the page faults of using it
    again cost more than the arithmetic. Its threshold follows the largest block that was ever
    freed, up to 32 MiB; freeing one that was never written is enough, and uses no memory. Other C
    libraries are not affected.
    """
    block = np.empty(_BLOCK_BYTES, dtype=np.uint8)
    del block
