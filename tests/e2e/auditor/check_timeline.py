"""Cards above a limit at any moment, and grants that were changed."""

from __future__ import annotations

from collections.abc import Iterator

from tests.e2e.auditor import nodes, timeline
from tests.e2e.auditor.card_limits import Measure
from tests.e2e.auditor.evidence import Evidence
from tests.e2e.auditor.findings import Finding, Kind
from tests.e2e.auditor.pod_annotations import ALLOCATED
from tests.e2e.auditor.replay import Replay

KINDS = {
    Measure.COUNT: Kind.PEAK_COUNT,
    Measure.MEMORY: Kind.PEAK_MEMORY,
    Measure.CORES: Kind.PEAK_CORES,
    Measure.EXCLUSIVE: Kind.PEAK_EXCLUSIVE,
}


def replayed(evidence: Evidence) -> Replay:
    """Play what was recorded; lines that do not parse are left out here and reported by `check`."""
    replay = Replay(nodes.registers(evidence.nodes), evidence.resources.count)
    replay.play(timeline.read(evidence.timeline)[0])
    return replay


def check(evidence: Evidence) -> Iterator[Finding]:
    for number, why in timeline.read(evidence.timeline)[1]:
        yield Finding(Kind.UNREADABLE, f"timeline line {number}", why)
    replay = replayed(evidence)
    for ((node, card), measure), worst in replay.worst.items():
        yield Finding(
            KINDS[measure],
            f"card {card} of node {node}",
            f"{worst.what} (timeline at {worst.time:.3f})",
        )
    for change in replay.rewritten.values():
        yield Finding(
            Kind.GRANT_REWRITTEN,
            f"{change.pod.subject} {ALLOCATED}",
            f"it was bound with {change.first!r}, at {change.time:.3f} it says {change.later!r} "
            f"(timeline)",
        )
