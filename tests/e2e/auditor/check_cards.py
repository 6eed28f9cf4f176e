"""Cards above their count, memory or cores now, by the grants of pods."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from tests.e2e.auditor import card_limits, nodes, pods
from tests.e2e.auditor.card_limits import Measure
from tests.e2e.auditor.evidence import Evidence
from tests.e2e.auditor.findings import Finding, Kind
from tests.e2e.auditor.pods import Holding, Pod

KINDS = {
    Measure.COUNT: Kind.CARD_COUNT,
    Measure.MEMORY: Kind.CARD_MEMORY,
    Measure.CORES: Kind.CARD_CORES,
    Measure.EXCLUSIVE: Kind.CARD_EXCLUSIVE,
}


def check(evidence: Evidence) -> Iterator[Finding]:
    held: defaultdict[tuple[str, str], dict[str, Holding]] = defaultdict(dict)
    for pod in map(Pod.of, evidence.pods):
        if pod.live:
            count = evidence.resources.count
            for card_id, holding in pods.holdings(pod, pod.slots(), count).items():
                held[pod.node, card_id][pod.full_name] = holding
    for node, cards in nodes.registers(evidence.nodes).items():
        for card in cards.values():
            for excess in card_limits.excesses(card, held.get((node, card.id), {})):
                yield Finding(
                    KINDS[excess.measure],
                    f"card {card.id} of node {node}",
                    f"{excess.what} (grants of live pods in the API)",
                )
