"""How well two cards of a node are joined, as one number per pair (hami-protocol A.6).

A pair's score is the sum over its links: what of PCIe they share, and the NVLinks between them.
Two cards that tell different things about each other are given the lesser, and nothing where one
of them does not see a link at all.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from hami.node.cards import NVSWITCH, CardLinks
from hami.wire.pair_scores import PairScores

#: By NVML's level of the nearest thing that two cards share on PCIe.
_ANCESTORS = {
    0: 60,  # the board
    10: 50,  # one switch
    20: 40,  # several switches
    30: 30,  # the host bridge
    40: 20,  # the CPU, or NUMA node
    50: 10,  # the machine
}
_NVLINK = 100
_MOST_NVLINKS = 18


def pair_scores(cards: Sequence[CardLinks]) -> tuple[tuple[PairScores, ...], tuple[str, ...]]:
    """Score every pair; the notes name pairs that do not agree, for the administrator."""
    scores: dict[str, dict[str, int]] = {card.uuid: {} for card in cards}
    notes: list[str] = []
    for one, other in itertools.combinations(cards, 2):
        score, note = _pair(one, other)
        scores[one.uuid][other.uuid] = scores[other.uuid][one.uuid] = score
        if note:
            notes.append(note)
    order = [card.uuid for card in cards]
    return tuple(
        PairScores(
            uuid=uuid,
            score={other: scores[uuid][other] for other in order if other != uuid},
        )
        for uuid in order
    ), tuple(notes)


def _pair(one: CardLinks, other: CardLinks) -> tuple[int, str]:
    there, back = _links(one, other), _links(other, one)
    if there == back:
        return sum(there), ""
    pair = f"GPU {one.uuid} and GPU {other.uuid}"
    if len(there) != len(back):
        return 0, (
            f"{pair} see {len(there)} and {len(back)} kinds of links to each other, so their link "
            "does not count; check `nvidia-smi topo -m` and the NVLinks, then restart the agent"
        )
    score = min(sum(there), sum(back))
    return score, (
        f"{pair} score their links {sum(there)} and {sum(back)}, so {score} counts; some NVLink "
        "may be down at one end only: check `nvidia-smi nvlink --status`"
    )


def _links(one: CardLinks, other: CardLinks) -> list[int]:
    found = [_ANCESTORS.get(one.ancestors.get(other.uuid, -1), 0)]
    count = one.nvlinks.count(other.bus_id)
    if not count:
        count = min(one.nvlinks.count(NVSWITCH), other.nvlinks.count(NVSWITCH))
    if count <= _MOST_NVLINKS:
        found.append(_NVLINK * count)
    return [score for score in found if score]
