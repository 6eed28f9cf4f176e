"""Processes, containers and cards above their limit, by the driver.

A container's limit is what its pod was granted of the card; a grant of 0 MiB is none. The grants of
pods that are gone come from the timeline. A pod of which neither API nor timeline knows cannot be
judged; what it took still counts in the card's sum.
"""

from __future__ import annotations

from collections.abc import Iterator

from tests.e2e.auditor import check_timeline, peaks, pods
from tests.e2e.auditor.evidence import Evidence
from tests.e2e.auditor.findings import Finding, Kind
from tests.e2e.auditor.peaks import Peak
from tests.e2e.auditor.pod_annotations import ALLOCATED
from tests.e2e.auditor.pods import Pod

_MIB = 2**20


def check(evidence: Evidence) -> Iterator[Finding]:
    if not any(files.peaks for files in evidence.files.values()):
        return
    known = {pod.uid: pod for pod in map(Pod.of, evidence.pods)}
    known |= check_timeline.replayed(evidence).bound
    for node, files in evidence.files.items():
        found, bad = peaks.read(files.peaks)
        for number, why in bad:
            yield Finding(
                Kind.DRIVER_RECORD, f"node {node} line {number}", f"{why} ({files.peaks_path})"
            )
        for peak in found:
            where = f"({files.peaks_path})"
            if peak.bytes > peak.total:
                yield Finding(
                    Kind.DRIVER_CARD,
                    f"card {peak.card} of node {node}",
                    f"{peak.who}: {peak.bytes} bytes at once, it has {peak.total} {where}",
                )
            uid, _, container = peak.owner.partition("/")
            pod = known.get(uid)
            if pod is not None:
                yield from _limit(peak, pod, container, evidence.resources.count, where)


def _limit(peak: Peak, pod: Pod, name: str, count_resource: str, where: str) -> Iterator[Finding]:
    subject = f"{pod.subject} container {name} card {peak.card}"
    granted = [
        grant.memory
        for container, slot in pods.by_container(pod, pod.slots(), count_resource)
        for grant in slot
        if grant.card == peak.card and (container is None or container.name == name)
    ]
    limit = sum(granted) * _MIB
    if peak.bytes and not granted:
        yield Finding(
            Kind.DRIVER_NO_GRANT,
            subject,
            f"{peak.who}: {peak.bytes} bytes on a card that {ALLOCATED} "
            f"{pod.annotations.get(ALLOCATED)!r} does not give it {where}",
        )
    elif limit and peak.bytes > limit:
        yield Finding(
            Kind.DRIVER_LIMIT,
            subject,
            f"{peak.who}: {peak.bytes} bytes at once, its limit is {limit} by {ALLOCATED} {where}",
        )
