"""NVIDIA: cards that are cut into MIG instances take no shares.

Pods get MIG instances that an administrator has cut beforehand as resources of their own (the
agent advertises them); placing shares on such instances is not built.
"""

from __future__ import annotations

from collections.abc import Mapping

from hami.vendors.family import CardRequest, CardState, Mask, Plain, Reason

MIG_MODE = "mig"
"""The mode with which a card is registered that is cut into instances."""


class Nvidia(Plain):
    def refuse(self, request: CardRequest, state: CardState[Mask]) -> Mapping[Reason, Mask]:  # noqa: ARG002 the protocol's
        """Refuse cards in MIG mode."""
        in_mig_mode = state.in_mode(MIG_MODE)
        if in_mig_mode is None:
            return {}
        return {Reason.CARD_MIG_TOPOLOGY_INFEASIBLE: in_mig_mode}
