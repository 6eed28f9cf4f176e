"""Scores of cards and nodes, and the order of cards that follows from a policy.

Both scores are HAMi's, with the incoming request counted (HAMi scores what was there before). They
are compared in steps of 2^-20, so that two equal ways to compute a number are equal, and no order
comes from rounding noise. The expressions here and in docs/placement.md, sections 5 and 8, are the
same to the last operation.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hami.cluster.card_table import Cards, Floats, Ints, Totals
from hami.placement.policy import Key, Weights

Amounts = Ints | int
"""One number for every card or node, or one for all."""

_Part = tuple[Amounts, Floats, int]
"""What would be used, of what in total, and its weight."""

_STEPS = 2.0**20
_LARGEST = 2.0**40
_KEY_BITS = 41
_COLUMN_BITS = 10


def quantize(score: Floats) -> Ints:
    """Round a score to the steps in which scores are compared."""
    # Scores are never negative, so cutting off is rounding down, at a tenth of floor's price.
    stepped = score * _STEPS
    stepped += 0.5
    np.minimum(stepped, _LARGEST, out=stepped)
    return stepped.astype(np.int64)


def _weighed_shares(slots: _Part, cores: _Part, memory: _Part) -> Floats:
    """Add up the weighed shares, times ten; in place, because large arrays are dear to make."""
    score = _weighed_share(*slots)
    score += _weighed_share(*cores)
    score += _weighed_share(*memory)
    score *= 10
    return score


def _weighed_share(used: Amounts, total: Floats, weight: int) -> Floats:
    share: Floats = np.divide(used, total)
    if weight != 1:
        share *= weight
    return share


def device_score(
    cards: Cards,
    rows: slice,
    *,
    slots: Amounts,
    cores: Amounts,
    memory: Amounts,
    weights: Weights,
) -> Floats:
    """Score cards by what would be used of them with the request."""
    score = _weighed_shares(
        (slots, cards.count_divisor[:, rows], weights.slot),
        (cores, cards.cores_divisor[:, rows], weights.core),
        (memory, cards.memory_divisor[:, rows], weights.memory),
    )
    if cards.unscored:
        totals = (cards.count[:, rows], cards.cores[:, rows], cards.memory[:, rows])
        score[np.logical_or.reduce([total == 0 for total in totals])] = 0.0
    return score


def node_score(
    totals: Totals, rows: slice, *, slots: Amounts, cores: Amounts, memory: Amounts
) -> Floats:
    """Score nodes by what would be used of all their cards with the pod."""
    parts = (
        (totals.used[rows] + slots, totals.count[rows]),
        (totals.cores_used[rows] + cores, totals.cores[rows]),
        (totals.memory_used[rows] + memory, totals.memory[rows]),
    )
    score = _weighed_shares(*((used, np.maximum(total, 1.0), 1) for used, total in parts))
    score[np.logical_or.reduce([total == 0 for _, total in parts])] = 0.0
    return score


def order_keys(
    keys: Sequence[Key], *, score: Floats, used: Ints, numa_rank: Ints, weights: Weights
) -> Ints:
    """Return one number per card: the card with the highest number on a node comes first.

    Numbers differ within a node, because the position of the card is their last part.
    """
    order: Ints = np.zeros(used.shape, dtype=np.int64)
    for key in keys:
        match key:
            case Key.SCORE_HIGH | Key.SCORE_LOW:
                weight = weights.slot + weights.core + weights.memory
                stepped = quantize(score / weight)
                order <<= _KEY_BITS
                order += stepped if key is Key.SCORE_HIGH else int(_LARGEST) - stepped
            case Key.USED_LOW:
                order <<= _KEY_BITS
                order += int(_LARGEST) - np.minimum(used, int(_LARGEST))
            case Key.NUMA_HIGH | Key.NUMA_LOW:
                order <<= _COLUMN_BITS
                largest = (1 << _COLUMN_BITS) - 1
                order += numa_rank if key is Key.NUMA_HIGH else largest - numa_rank
    order <<= _COLUMN_BITS
    order += np.arange(used.shape[0], dtype=np.int64)[:, None]
    return order
