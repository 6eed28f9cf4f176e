"""Find the nodes and cards that fit, for all nodes at once.

One pass over a card table answers, for every node: does the pod fit, with which score, and if not,
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

from hami.cluster.card_table import CardTable, Flags, Floats, Ints, Mask
from hami.placement import checks, score
from hami.placement.checks import CardRefusals
from hami.placement.policy import Key
from hami.placement.question import Question, State, Tally
from hami.placement.score import Numbers
from hami.vendors.family import Amount, CardRequest
from hami.wire.objects import ContainerKind


class Survey(msgspec.Struct, frozen=True):
    """The answer for some rows of one card table; every array's last axis is the row."""

    #: The pod fits.
    fits: Mask
    score: Floats
    #: Number into checks.NODE_REASONS.
    node_refusal: Flags
    #: Number of the step that did not fit, where one did not.
    failed_step: npt.NDArray[np.int64]
    #: Why each card was refused in that step.
    refusals: CardRefusals
    #: (card, row) for each step: the cards it takes. Complete only if asked for.
    taken: Sequence[Mask]


class Surveyor:
    """Checks one card table for one question; fixed refusals are worked out once."""

    def __init__(self, table: CardTable, question: Question) -> None:
        self._table = table
        self.question = question
        self._fixed = {
            vendor: checks.fixed_refusals(table.cards[vendor], table.rows, selector)
            for vendor, selector in question.pod.selectors.items()
            if vendor in table.cards
        }

    def survey(self, rows: slice, asked: Mask, *, choose: bool = False) -> Survey:
        """Check the given rows; `choose` lists the cards each step takes on rows that do fit.

        What is known of such rows already, that no node is refused and their scores, is left out.
        """
        steps = self.question.steps
        if choose:
            node_refusal = np.zeros(asked.shape, dtype=np.uint8)
        else:
            node_refusal = checks.node_refusals(self._table, rows, self.question)
        alive = asked & (node_refusal == 0)
        if not alive.any():  # and the table may lack a vendor that was asked for
            return _nothing_fits(self._table.width, node_refusal)
        failed_step = np.zeros(alive.shape, dtype=np.int64)
        tally = Tally(self.question, self._table, rows)
        taken: list[Mask] = []
        for number, (index, request) in enumerate(steps):
            state = tally.states[request.vendor]
            amount = self.question.families[request.vendor].amounts(request, state)
            refused_now = self._refusals(request, rows, state, amount)
            eligible = self._numa_group(refused_now.eligible(), request, rows)
            counted = count(eligible)
            enough = counted >= request.count
            failing = alive & ~enough
            if number == 0:
                refusals = refused_now
            elif failing.any():
                refusals = refusals.replaced(failing, refused_now)
                failed_step[failing] = number
            alive = alive & enough
            if not alive.any():
                break
            # Which cards are taken matters to later steps, and to the score where they differ.
            stays = self.question.kind(index) is not ContainerKind.INIT
            cards = self._table.cards[request.vendor]
            mixed = bool(cards.mixed) and request.percentage > 0
            mixed = mixed or (bool(cards.uneven) and not isinstance(amount.cores, int))
            chosen = None
            if choose or mixed or (stays and number + 1 < len(steps)):
                chosen = eligible & alive
                if (counted[alive] > request.count).any():
                    chosen = self._choose(chosen, request, rows, state, amount)
                taken.append(chosen)
            tally.add(index, request, amount, chosen)
        return Survey(
            fits=alive,
            # A refusal has no use for scores: of 5,000 nodes 70 us, where deciding takes 370.
            score=np.zeros(alive.shape) if choose or not alive.any() else tally.node_score(),
            node_refusal=node_refusal,
            failed_step=failed_step,
            refusals=refusals,
            taken=taken,
        )

    def _refusals(
        self, request: CardRequest, rows: slice, state: State, amount: Amount[Numbers]
    ) -> CardRefusals:
        question, vendor = self.question, request.vendor
        usage = checks.usage_refusals(
            request,
            self._table.cards[vendor],
            rows,
            state=state,
            amount=amount,
            headroom=question.headroom[vendor],
            idle_only=question.pod.gpu_policy.idle_only,
            applied=question.families[vendor].vendor.checks,
        )
        own = checks.own_refusals(question.families[vendor], request, state)
        return CardRefusals(self._fixed[vendor][:, rows], usage, own)

    def _numa_group(self, eligible: Mask, request: CardRequest, rows: slice) -> Mask:
        """Keep one NUMA group of each node, where the pod is bound to one."""
        pod = self.question.pod
        if not pod.selectors[request.vendor].numa_bind:
            return eligible
        return best_numa_group(
            eligible,
            self._table.cards[request.vendor].numa_rank[:, rows],
            needed=request.count,
            order=pod.gpu_policy.order(numa_bind=True)[0],
        )

    def _choose(
        self,
        eligible: Mask,
        request: CardRequest,
        rows: slice,
        state: State,
        amount: Amount[Numbers],
    ) -> Mask:
        """Take the best cards of each node by the pod's policy."""
        pod, cards = self.question.pod, self._table.cards[request.vendor]
        weights = pod.weights
        order = score.order_keys(
            pod.gpu_policy.order(numa_bind=pod.selectors[request.vendor].numa_bind),
            score=score.card_score(
                cards,
                rows,
                shares=state.used + amount.slots,
                cores=cards.cores[:, rows] - state.cores_left + amount.cores,
                memory=state.memory - state.memory_left + amount.memory,
                weights=weights,
            ),
            used=state.used,
            numa_rank=cards.numa_rank[:, rows],
            weights=weights,
        )
        return take_first(eligible, order, needed=request.count)


def _nothing_fits(width: int, node_refusal: Flags) -> Survey:
    """Answer when no node gets as far as its cards."""
    rows = node_refusal.size
    cards = np.zeros((width, rows), dtype=np.uint8)
    return Survey(
        fits=np.zeros(rows, dtype=np.bool_),
        score=np.zeros(rows),
        node_refusal=node_refusal,
        failed_step=np.zeros(rows, dtype=np.int64),
        refusals=CardRefusals(cards, cards),
        taken=(),
    )


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

    Nodes with fewer lose none: the caller has checked that there are enough.
    """
    ranked = np.where(eligible, order, -1)
    if needed == 1:
        threshold = ranked.max(axis=0)
    else:
        split = eligible.shape[0] - needed
        threshold = np.partition(ranked, split, axis=0)[split]
    taken: Mask = eligible & (ranked >= threshold)
    return taken
