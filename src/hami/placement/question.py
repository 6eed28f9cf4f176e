"""A pod's question to the cluster, and its running sums on every node.

A `Question` is all that holds for every node. It is put together once per decision, so that the
code that checks nodes looks nothing up.

A `Tally` is what the pod adds to the nodes while its containers are fitted, for all nodes at once:
the vector form of `hami.wire.shares.peak`. Sidecars and app containers stay in the state of the
cards, init containers only raise the peak. Numbers are plain integers while they are the same on
every node, and become arrays when percentages of different cards make them differ.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import msgspec
import numpy as np

from hami.cluster.card_table import CardTable, Floats, Ints, Mask
from hami.cluster.quota import Headroom
from hami.cluster.state import Cluster
from hami.placement import score
from hami.placement.request import PodRequest, Totals
from hami.placement.score import Numbers
from hami.vendors.family import Amount, CardRequest, Family
from hami.wire.objects import ContainerKind

Step = tuple[int, CardRequest]
"""The index of a container and one of its requests."""


class Question(msgspec.Struct, frozen=True):
    pod: PodRequest
    #: By vendor name, for every vendor asked for.
    families: Mapping[str, Family]
    #: What the pod's namespace may still get, by vendor name.
    headroom: Mapping[str, Headroom]
    #: The pod added up, by vendor name.
    totals: Mapping[str, Totals]
    #: The most cards that one container asks for, by vendor name.
    most_cards: Mapping[str, int]
    #: In the order in which they are fitted.
    steps: tuple[Step, ...]

    def kind(self, index: int) -> ContainerKind:
        return self.pod.containers[index].kind

    def hardest_first(self) -> Question | None:
        """Return the question with its app containers in another order; None if there is none."""
        asking = [
            index
            for index, container in enumerate(self.pod.containers)
            if container.kind is ContainerKind.APP and container.cards
        ]
        hardest = sorted(asking, key=self._hardness, reverse=True)
        if hardest == asking:
            return None
        before = [step for step in self.steps if self.kind(step[0]) is not ContainerKind.APP]
        after = [(index, cards) for index in hardest for cards in self.pod.containers[index].cards]
        return msgspec.structs.replace(self, steps=(*before, *after))

    def _hardness(self, index: int) -> tuple[int, int, int, int]:
        return max(
            (cards.percentage, cards.memory, cards.cores, cards.count)
            for cards in self.pod.containers[index].cards
        )


def ask(cluster: Cluster, pod: PodRequest) -> Question:
    """Put the question together for a pod that holds nothing in the cluster's state."""
    steps = tuple(pod.requests())
    return Question(
        pod=pod,
        families={vendor: cluster.families[vendor] for vendor in pod.selectors},
        headroom={
            vendor: cluster.quotas.headroom(pod.namespace, cluster.vendors[vendor])
            for vendor in pod.selectors
        },
        totals=pod.totals(),
        most_cards={
            vendor: max(cards.count for _, cards in steps if cards.vendor == vendor)
            for vendor in pod.selectors
        },
        steps=steps,
    )


class Running:
    """A sum over containers and its peak."""

    def __init__(self) -> None:
        self.now: Numbers = 0
        self.peak: Numbers = 0

    def add(self, kind: ContainerKind, amount: Numbers) -> None:
        reached = self.now + amount
        if kind is not ContainerKind.INIT:
            self.now = reached
        self.peak = np.maximum(self.peak, reached)


class State:
    """How full the cards of one vendor are, with this pod's containers added so far."""

    def __init__(self, table: CardTable, vendor: str, rows: slice) -> None:
        self._cards = cards = table.cards[vendor]
        self._rows = rows
        self.memory = cards.memory[:, rows]
        # The tables themselves: `add` replaces them, it never changes them.
        self.used = cards.used[:, rows]
        self.memory_left = cards.memory_left[:, rows]
        self.cores_left = cards.cores_left[:, rows]
        #: The pod's own memory and cores over all cards of the vendor, as quota counts them.
        self.own_memory = Running()
        self.own_cores = Running()

    @property
    def cores(self) -> Ints:
        """Compute of the cards in total; few families ask for it."""
        return self._cards.cores[:, self._rows]

    def add(self, taken: Mask, amount: Amount[Numbers]) -> None:
        """Put a container on its cards, for the containers after it."""
        self.used = self.used + (taken if _is_one(amount.slots) else taken * amount.slots)
        self.memory_left = self.memory_left - taken * amount.memory
        if not isinstance(amount.cores, int) or amount.cores:
            self.cores_left = self.cores_left - taken * np.asarray(amount.cores, dtype=np.int64)

    def in_mode(self, mode: str) -> Mask | None:
        """Return which cards are registered with a mode; None if no card of the table is."""
        number = self._cards.modes.find(mode)
        if number is None:
            return None
        found: Mask = self._cards.mode_number[:, self._rows] == number
        return found

    def by_mode(self, number: Callable[[str], int]) -> Ints:
        """Return what a function makes of the mode of each card; 0 where there is none."""
        texts = self._cards.modes.texts
        numbers = np.array([number(text) if text else 0 for text in texts], dtype=np.int64)
        found: Ints = numbers[self._cards.mode_number[:, self._rows]]
        return found

    def where_mode(self, accepts: Callable[[str], bool]) -> Mask:
        """Return the cards whose mode a function accepts."""
        found: Mask = self.by_mode(lambda mode: int(accepts(mode))) > 0
        return found

    def lacks_slots(self, slots: Callable[[str], int]) -> Mask:
        """Return the cards with fewer shares left than a function makes of their mode."""
        lacking: Mask = self.used + self.by_mode(slots) > self._cards.count[:, self._rows]
        return lacking


def _is_one(slots: Numbers) -> bool:
    return isinstance(slots, int) and slots == 1


def _over_cards(count: int, each: Numbers, taken: Mask | None) -> Numbers:
    """Add up what a request takes of all its cards; `taken` None: any would be the same."""
    if isinstance(each, int):
        return count * each
    if taken is None:
        of_first: Ints = count * each[0]
        return of_first
    added: Ints = (taken * each).sum(axis=0)
    return added


class Tally:
    """State of all requested vendors, and the pod's sums for the node score."""

    def __init__(self, question: Question, table: CardTable, rows: slice) -> None:
        self.states = {vendor: State(table, vendor, rows) for vendor in question.families}
        self._question = question
        self._totals = table.totals
        self._rows = rows
        self._shares, self._memory, self._cores = Running(), Running(), Running()
        #: The index of the container being added up, and its sums over vendors.
        self._index = -1
        self._container: tuple[Numbers, Numbers, Numbers] = (0, 0, 0)

    def add(
        self, index: int, request: CardRequest, amount: Amount[Numbers], taken: Mask | None
    ) -> None:
        """Count a request that fits; `taken` are its cards, None if any would be the same."""
        if index != self._index:
            self._close_container()
            self._index = index
        kind, state = self._question.kind(index), self.states[request.vendor]
        cores = _over_cards(request.count, amount.cores, taken)
        memory = _over_cards(request.count, amount.memory, taken)
        slots = _over_cards(request.count, amount.slots, taken)
        if taken is not None and kind is not ContainerKind.INIT:
            state.add(taken, amount)
        state.own_memory.add(kind, memory)
        state.own_cores.add(kind, cores)
        shares_so_far, memory_so_far, cores_so_far = self._container
        self._container = (
            shares_so_far + slots,
            memory_so_far + memory,
            cores_so_far + cores,
        )

    def node_score(self) -> Floats:
        """Score the nodes with the pod on them."""
        self._close_container()
        return score.node_score(
            self._totals,
            self._rows,
            shares=self._shares.peak,
            cores=self._cores.peak,
            memory=self._memory.peak,
        )

    def _close_container(self) -> None:
        if self._index >= 0:
            kind = self._question.kind(self._index)
            for running, amount in zip(
                (self._shares, self._memory, self._cores), self._container, strict=True
            ):
                running.add(kind, amount)
        self._container = (0, 0, 0)
