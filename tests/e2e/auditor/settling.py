"""Delay of reports: things in progress are legal, double use never is.

A look at a living cluster sees containers that are being made and pods that are being taken away:
a folder whose token kubelet has not written down yet, a lock between bind and Allocate, files that
the plugin sweeps every few seconds. So the kinds in `findings.MOMENTARY` are reported only if the
very same thing (kind and subject) stands in every look until `patience` has passed; the first look
without any of them ends the wait, so a clean cluster costs one look. Every other kind must never be
seen, not even once: whatever any look shows is reported. `Evidence.quiet` is stricter still: it
says that nothing is being placed, so that a node lock counts even if its pod would need it.

Evidence is gathered so that one look does not contradict itself (gathering.py): what stands in no
order with the rest is momentary.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from tests.e2e.auditor import auditing
from tests.e2e.auditor.evidence import Evidence
from tests.e2e.auditor.findings import MOMENTARY, Finding

PATIENCE = 30.0
"""Above the bare plugin's longest delay: a sweep every 5 s over tokens older than 10 s."""
PAUSE = 1.0


def settle(
    gather: Callable[[], Evidence],
    *,
    patience: float = PATIENCE,
    pause: float = PAUSE,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> list[Finding]:
    """Look until nothing momentary stands or patience ends; always twice before reporting it."""
    deadline = clock() + patience
    found = auditing.audit(gather())
    certain = {finding for finding in found if finding.kind not in MOMENTARY}
    standing = _momentary(found)
    while standing:
        sleep(pause)
        found = auditing.audit(gather())
        certain |= {finding for finding in found if finding.kind not in MOMENTARY}
        again = _momentary(found)
        standing = {key: again[key] for key in standing if key in again}
        if clock() >= deadline:
            break
    return sorted({*certain, *standing.values()})


def _momentary(found: list[Finding]) -> dict[tuple[str, str], Finding]:
    return {(one.kind, one.subject): one for one in found if one.kind in MOMENTARY}
