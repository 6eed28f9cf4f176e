"""Rules that only one vendor has, by the name in its row.

A rule judges all cards of a vendor at once and says with which reason it refuses them. MIG
placement, link topology and the other vendors' rules come in here, one small class each.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
import numpy.typing as npt

from hami.cluster.card_table import Cards
from hami.placement.reasons import Reason

Mask = npt.NDArray[np.bool_]


class CardRule(Protocol):
    """A refusal of one vendor's own."""

    reason: Reason

    def refused(self, cards: Cards, rows: slice) -> Mask:
        """Return which cards (card, node) of those rows are refused; one value holds for all."""


class NoMigCards:
    """NVIDIA cards that are cut into MIG instances: placing on them is not built yet."""

    reason = Reason.CARD_MIG_TOPOLOGY_INFEASIBLE

    def refused(self, cards: Cards, rows: slice) -> Mask:
        cut = np.array([mode == "mig" for mode in cards.modes.texts], dtype=np.bool_)
        if not cut.any():
            return cut[:1]
        return cut[cards.mode_number[:, rows]]


RULES: dict[str, CardRule] = {"nvidia": NoMigCards()}
