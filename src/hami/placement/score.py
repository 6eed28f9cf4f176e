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

Numbers = Ints | int
"""One number for every card or node, or one for all."""

_Part = tuple[Numbers, Floats, int]
"""The number that would be used, the total, and the weight."""

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


def _weighed_fractions(shares: _Part, cores: _Part, memory: _Part) -> Floats:
    """Add up the weighed fractions, times ten; in place, because new large arrays cost time."""
    score = _weighed_fraction(*shares)
    score += _weighed_fraction(*cores)
    score += _weighed_fraction(*memory)
    score *= 10
    return score


def _weighed_fraction(used: Numbers, total: Floats, weight: int) -> Floats:
    fraction: Floats = np.divide(used, total)
    if weight != 1:
        fraction *= weight
    return fraction


def card_score(
    cards: Cards,
    rows: slice,
    *,
    shares: Numbers,
    cores: Numbers,
    memory: Numbers,
    weights: Weights,
) -> Floats:
    """Score cards by what would be used of them with the request."""
    score = _weighed_fractions(
        (shares, cards.count_divisor[:, rows], weights.slot),
        (cores, cards.cores_divisor[:, rows], weights.core),
        (memory, cards.memory_divisor[:, rows], weights.memory),
    )
    if cards.unscored:
        totals = (cards.count[:, rows], cards.cores[:, rows], cards.memory[:, rows])
        score[np.logical_or.reduce([total == 0 for total in totals])] = 0.0
    return score


def node_score(
    totals: Totals, rows: slice, *, shares: Numbers, cores: Numbers, memory: Numbers
) -> Floats:
    """Score nodes by what would be used of all their cards with the pod."""
    parts = (
        (totals.used[rows] + shares, totals.count[rows]),
        (totals.cores_used[rows] + cores, totals.cores[rows]),
        (totals.memory_used[rows] + memory, totals.memory[rows]),
    )
    score = _weighed_fractions(*((used, np.maximum(total, 1.0), 1) for used, total in parts))
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
