"""All checks over one piece of evidence.

Not judged yet, because its format or its rule does not exist: MIG slices, resized grants
(`hami.io/vgpu-resize`), the state and ledger files of hami's agent beyond whose they are, and what
cards of other vendors hold (their annotations must decode).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from tests.e2e.auditor import (
    check_cards,
    check_devices,
    check_driver,
    check_grants,
    check_leftovers,
    check_limits,
    check_nodes,
    check_timeline,
)
from tests.e2e.auditor.evidence import Evidence
from tests.e2e.auditor.findings import Finding

CHECKS: tuple[Callable[[Evidence], Iterator[Finding]], ...] = (
    check_cards.check,
    check_timeline.check,
    check_driver.check,
    check_nodes.check,
    check_grants.check,
    check_leftovers.check,
    check_limits.check,
    check_devices.check,
)


def audit(evidence: Evidence) -> list[Finding]:
    """Return every finding once, in a steady order."""
    return sorted({finding for check in CHECKS for finding in check(evidence)})
