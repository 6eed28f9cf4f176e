"""Find the nodes and cards that fit, for all nodes at once.

Whether a node has enough eligible cards, and which of them are taken; for all nodes at once.

Judge all nodes of a shelf at once.
One pass over the tables answers, for every node: does the pod fit, with which score, and if not,
which check refused which card. Containers are fitted one after the other on a copy of what is used,
on all nodes together, so the answer is exact, for NUMA groups and for pods of many containers too:
nothing that passes here is refused later, and no question makes Python walk over nodes.
`hami.placement.decide` takes the best node and runs the same code on that one again, to learn the
cards.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np
import numpy.typing as npt

from hami.cluster.card_table import CardTable, Flags, Floats, Ints
from hami.placement import checks, rules, score
from hami.placement.policy import Key
from hami.placement.question import Question, State, Tally
from hami.placement.request import CardRequest
from hami.placement.rules import Mask
from hami.placement.score import Amounts
from hami.wire.objects import ContainerKind


def count(cards: Mask) -> npt.NDArray[np.uint16]:
    """Count the cards of each node."""
    # Bytes add up several times faster than booleans; no node has 65,536 cards.
    counted: npt.NDArray[np.uint16] = np.add.reduce(cards.view(np.uint8), axis=0, dtype=np.uint16)
    return counted


def best_numa_group(eligible: Mask, numa_rank: Ints, *, needed: int, order: Key) -> Mask:
    """Keep of each node the first NUMA group that has enough eligible cards, or nothing."""
    groups = int(numa_rank.max(initial=0)) + 1
    chosen = np.full(eligible.shape[1:], -1, dtype=np.int64)
    # The best group comes last, and so stays.
    for rank in range(groups) if order is Key.NUMA_HIGH else reversed(range(groups)):
        chosen[count(eligible & (numa_rank == rank)) >= needed] = rank
    kept: Mask = eligible & (numa_rank == chosen)
    return kept


def take_first(eligible: Mask, order: Ints, *, needed: int) -> Mask:
    """Take the `needed` eligible cards with the highest order of each node.

    Nodes with fewer lose none: whoever asks has checked that there are enough.
    """
    ranked = np.where(eligible, order, -1)
    if needed == 1:
        threshold = ranked.max(axis=0)
    else:
        split = eligible.shape[0] - needed
        threshold = np.partition(ranked, split, axis=0)[split]
    taken: Mask = eligible & (ranked >= threshold)
    return taken


class Survey(msgspec.Struct, frozen=True):
    """The answer for some rows of one shelf; every array's last axis is the row."""

    #: The pod fits.
    fits: Mask
    score: Floats
    #: Number into checks.NODE_REASONS.
    node_refusal: Flags
    #: Number of the step that did not fit, where one did not.
    failed_step: npt.NDArray[np.int64]
    #: (card, row): why each card was refused in that step, bits of Standing and of Usage.
    standing: Flags
    usage: Flags
    #: (card, row) for each step: the cards it takes. Complete only if asked for.
    taken: Sequence[Mask]


def _nothing_fits(width: int, node_refusal: Flags) -> Survey:
    """Answer when no node gets as far as its cards."""
    rows = node_refusal.size
    cards = np.zeros((width, rows), dtype=np.uint8)
    return Survey(
        fits=np.zeros(rows, dtype=np.bool_),
        score=np.zeros(rows),
        node_refusal=node_refusal,
        failed_step=np.zeros(rows, dtype=np.int64),
        standing=cards,
        usage=cards,
        taken=(),
    )


class Surveyor:
    """Judges one shelf for one question; standing refusals are worked out once."""

    def __init__(self, shelf: CardTable, question: Question) -> None:
        self._shelf = shelf
        self.question = question
        self._standing = {
            word: checks.standing_refusals(shelf.cards[word], shelf.rows, wishes)
            for word, wishes in question.pod.wishes.items()
            if word in shelf.cards
        }

    def survey(self, rows: slice, asked: Mask, *, choose: bool = False) -> Survey:
        """Judge the given rows; `choose` says which cards each step takes on rows that do fit.

        What is known of such rows already, that no node is refused and their scores, is left out.
        """
        steps = self.question.steps
        if choose:
            node_refusal = np.zeros(asked.shape, dtype=np.uint8)
        else:
            node_refusal = checks.node_refusals(self._shelf, rows, self.question)
        alive = asked & (node_refusal == 0)
        if not alive.any():  # nor need the shelf have tables of all vendors asked for
            return _nothing_fits(self._shelf.width, node_refusal)
        failed_step = np.zeros(alive.shape, dtype=np.int64)
        standing = usage = np.zeros((self._shelf.width, *alive.shape), dtype=np.uint8)
        tally = Tally(self.question, self._shelf, rows)
        taken: list[Mask] = []
        for number, (position, request) in enumerate(steps):
            state = tally.states[request.word]
            memory = checks.memory_wanted(request, self._shelf.cards[request.word], rows)
            standing_now = self._standing[request.word][:, rows]
            usage_now = self._usage_refusals(request, rows, state, memory)
            eligible = self._groups((standing_now | usage_now) == 0, request, rows)
            counted = count(eligible)
            enough = counted >= request.count
            failing = alive & ~enough
            if number == 0:
                standing, usage = standing_now, usage_now
            elif failing.any():
                standing = np.where(failing, standing_now, standing)
                usage = np.where(failing, usage_now, usage)
                failed_step[failing] = number
            alive = alive & enough
            if not alive.any():
                break
            # Which cards are taken matters to later steps, and to the score where they differ.
            stays = self.question.kind(position) is not ContainerKind.INIT
            mixed = request.percentage > 0 and bool(self._shelf.cards[request.word].mixed)
            chosen = None
            if choose or mixed or (stays and number + 1 < len(steps)):
                chosen = eligible & alive
                if (counted[alive] > request.count).any():
                    chosen = self._choose(chosen, request, rows, state, memory)
                taken.append(chosen)
            tally.add(position, request, memory, chosen)
        return Survey(
            fits=alive,
            score=np.zeros(alive.shape) if choose else tally.node_score(),
            node_refusal=node_refusal,
            failed_step=failed_step,
            standing=standing,
            usage=usage,
            taken=taken,
        )

    def _usage_refusals(
        self, request: CardRequest, rows: slice, state: State, memory: Amounts
    ) -> Flags:
        question, word = self.question, request.word
        return checks.usage_refusals(
            request,
            self._shelf.cards[word],
            rows,
            state=state,
            memory=memory,
            headroom=question.headroom[word],
            idle_only=question.pod.gpu_policy.idle_only,
            rule=rules.RULES.get(question.vendors[word].rule),
        )

    def _groups(self, eligible: Mask, request: CardRequest, rows: slice) -> Mask:
        """Keep one NUMA group of each node, where the pod is bound to one."""
        pod = self.question.pod
        if not pod.wishes[request.word].numa_bind:
            return eligible
        return best_numa_group(
            eligible,
            self._shelf.cards[request.word].numa_rank[:, rows],
            needed=request.count,
            order=pod.gpu_policy.order(numa_bind=True)[0],
        )

    def _choose(
        self, eligible: Mask, request: CardRequest, rows: slice, state: State, memory: Amounts
    ) -> Mask:
        pod, cards = self.question.pod, self._shelf.cards[request.word]
        weights = pod.weights
        order = score.order_keys(
            pod.gpu_policy.order(numa_bind=pod.wishes[request.word].numa_bind),
            score=score.device_score(
                cards,
                rows,
                slots=state.used + 1,
                cores=cards.cores[:, rows] - state.cores_left + request.cores,
                memory=cards.memory[:, rows] - state.memory_left + memory,
                weights=weights,
            ),
            used=state.used,
            numa_rank=cards.numa_rank[:, rows],
            weights=weights,
        )
        return take_first(eligible, order, needed=request.count)
