"""Whether a node has enough eligible cards, and which of them are taken; for all nodes at once."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from hami.cluster.shelf import Ints
from hami.placement.policy import Key
from hami.placement.rules import Mask


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
