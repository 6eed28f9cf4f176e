"""A pod's question to the cluster, and its running sums on every node.

A pod's question to the cluster: all that holds for every node.
Put together once per decision, so that the code that judges nodes looks nothing up.

What a pod adds to the nodes while its containers are fitted, for all nodes at once.
The vector form of `hami.wire.shares`: sidecars and app containers stay in the state of the
cards, init containers only raise the peak. Numbers are plain integers while they are the same on
every node, and become arrays when percentages of different cards make them differ.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
import numpy as np

from hami.cluster.card_table import CardTable, Floats
from hami.cluster.quota import Headroom
from hami.cluster.state import Cluster
from hami.placement import score
from hami.placement.request import CardRequest, PodRequest, Totals
from hami.placement.rules import Mask
from hami.placement.score import Amounts
from hami.vendors.table import Vendor
from hami.wire.objects import ContainerKind

Step = tuple[int, CardRequest]
"""The position of a container and one of its requests."""


class Question(msgspec.Struct, frozen=True):
    pod: PodRequest
    vendors: Mapping[str, Vendor]
    #: What the pod's namespace may still get, by vendor word.
    headroom: Mapping[str, Headroom]
    #: The pod added up, by vendor word.
    totals: Mapping[str, Totals]
    #: The most cards that one container asks for, by vendor word.
    most_cards: Mapping[str, int]
    #: In the order in which they are fitted.
    steps: tuple[Step, ...]

    def kind(self, position: int) -> ContainerKind:
        return self.pod.containers[position].kind

    def hardest_first(self) -> Question | None:
        """Return the question with its app containers in another order; None if there is none."""
        asking = [
            position
            for position, container in enumerate(self.pod.containers)
            if container.kind is ContainerKind.APP and container.cards
        ]
        hardest = sorted(asking, key=self._hardness, reverse=True)
        if hardest == asking:
            return None
        before = [step for step in self.steps if self.kind(step[0]) is not ContainerKind.APP]
        after = [(at, cards) for at in hardest for cards in self.pod.containers[at].cards]
        return msgspec.structs.replace(self, steps=(*before, *after))

    def _hardness(self, position: int) -> tuple[int, int, int, int]:
        return max(
            (cards.percentage, cards.memory, cards.cores, cards.count)
            for cards in self.pod.containers[position].cards
        )


def ask(cluster: Cluster, pod: PodRequest) -> Question:
    """Put the question together for a pod that is not in the ledger."""
    steps = tuple(pod.requests())
    return Question(
        pod=pod,
        vendors={word: cluster.vendors[word] for word in pod.wishes},
        headroom={
            word: cluster.quotas.headroom(pod.namespace, cluster.vendors[word])
            for word in pod.wishes
        },
        totals=pod.totals(),
        most_cards={
            word: max(cards.count for _, cards in steps if cards.word == word)
            for word in pod.wishes
        },
        steps=steps,
    )


class Running:
    """A sum over containers and its peak."""

    def __init__(self) -> None:
        self.now: Amounts = 0
        self.peak: Amounts = 0

    def add(self, kind: ContainerKind, amount: Amounts) -> None:
        reached = self.now + amount
        if kind is not ContainerKind.INIT:
            self.now = reached
        self.peak = np.maximum(self.peak, reached)


class State:
    """How full the cards of one vendor are, with this pod's containers added so far."""

    def __init__(self, shelf: CardTable, word: str, rows: slice) -> None:
        cards = shelf.cards[word]
        # The tables themselves: `add` replaces them, it never changes them.
        self.used = cards.used[:, rows]
        self.memory_left = cards.memory_left[:, rows]
        self.cores_left = cards.cores_left[:, rows]
        #: The pod's own memory and cores over all cards of the vendor, as quota counts them.
        self.own_memory = Running()
        self.own_cores = Running()

    def add(self, taken: Mask, *, memory: Amounts, cores: int) -> None:
        """Put a container on its cards, for the containers after it."""
        self.used = self.used + taken
        self.memory_left = self.memory_left - taken * memory
        if cores:
            self.cores_left = self.cores_left - taken * np.int64(cores)


class Tally:
    """State of all requested vendors, and the pod's sums for the node score."""

    def __init__(self, question: Question, shelf: CardTable, rows: slice) -> None:
        self.states = {word: State(shelf, word, rows) for word in question.pod.wishes}
        self._question = question
        self._totals = shelf.totals
        self._rows = rows
        self._slots, self._memory, self._cores = Running(), Running(), Running()
        #: The container being added up, and its sums over vendors.
        self._position = -1
        self._container: tuple[int, Amounts, int] = (0, 0, 0)

    def add(self, position: int, request: CardRequest, memory: Amounts, taken: Mask | None) -> None:
        """Count a request that fits; `taken` are its cards, None if any would be the same."""
        if position != self._position:
            self._close_container()
            self._position = position
        kind, state = self._question.kind(position), self.states[request.word]
        cores = request.count * request.cores
        total: Amounts = request.count * request.memory
        if isinstance(memory, np.ndarray):
            total = request.count * memory[0] if taken is None else (taken * memory).sum(axis=0)
        if taken is not None and kind is not ContainerKind.INIT:
            state.add(taken, memory=memory, cores=request.cores)
        state.own_memory.add(kind, total)
        state.own_cores.add(kind, cores)
        slots_so_far, memory_so_far, cores_so_far = self._container
        self._container = (
            slots_so_far + request.count,
            memory_so_far + total,
            cores_so_far + cores,
        )

    def node_score(self) -> Floats:
        """Score the nodes with the pod on them."""
        self._close_container()
        return score.node_score(
            self._totals,
            self._rows,
            slots=self._slots.peak,
            cores=self._cores.peak,
            memory=self._memory.peak,
        )

    def _close_container(self) -> None:
        if self._position >= 0:
            kind = self._question.kind(self._position)
            for running, amount in zip(
                (self._slots, self._memory, self._cores), self._container, strict=True
            ):
                running.add(kind, amount)
        self._container = (0, 0, 0)
