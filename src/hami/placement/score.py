"""Scores of cards and nodes, and the order of cards that follows from a policy.

Both scores are HAMi's, with the incoming request counted (HAMi scores what was there before). They
are compared in steps of 2^-20, so that two equal ways to compute a number are equal, and no order
comes from rounding noise. The expressions here and in docs/placement.md, sections 5 and 8, are the
same to the last operation.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from hami.cluster.shelf import Ints
from hami.placement.policy import Key, Weights

Floats = npt.NDArray[np.float64]
Amounts = Ints | int
"""One number for every card or node, or one for all."""

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


def device_score(
    *,
    slots: tuple[Amounts, Ints],
    cores: tuple[Amounts, Ints],
    memory: tuple[Amounts, Ints],
    weights: Weights,
) -> Floats:
    """Score cards by (used with the request, total) of slots, cores and memory."""
    with np.errstate(divide="ignore", invalid="ignore"):
        score: Floats = np.divide(*slots)
        score *= weights.slot
        share: Floats = np.divide(*cores)  # large arrays are dear to make: this one serves twice
        share *= weights.core
        score += share
        np.divide(*memory, out=share)
        share *= weights.memory
        score += share
        score *= 10
    score[(slots[1] == 0) | (cores[1] == 0) | (memory[1] == 0)] = 0.0
    return score


def node_score(
    *, slots: tuple[Amounts, Ints], cores: tuple[Amounts, Ints], memory: tuple[Amounts, Ints]
) -> Floats:
    """Score nodes by (used with the pod, total) of slots, cores and memory over all cards."""
    return device_score(slots=slots, cores=cores, memory=memory, weights=Weights())


def order_keys(
    keys: Sequence[Key], *, score: Floats | None, used: Ints, numa_rank: Ints, weights: Weights
) -> Ints:
    """Return one number per card: the card with the highest number on a node comes first.

    Numbers differ within a node, because the position of the card is their last part.
    """
    order: Ints = np.zeros(used.shape, dtype=np.int64)
    for key in keys:
        match key:
            case Key.SCORE_HIGH | Key.SCORE_LOW:
                assert score is not None
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
