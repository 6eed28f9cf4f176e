"""kubelet's records: one holder per device id, checkpoint as PodResources.

kubelet gives the ids of an init container, which runs alone and ends, to a later container of the
same pod. Nobody else may share an id.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping

from tests.e2e.auditor.evidence import Evidence, Held, NodeFiles
from tests.e2e.auditor.findings import Finding, Kind
from tests.e2e.auditor.pods import ContainerKind, Pod

_Books = dict[tuple[str, str, str], frozenset[str]]
"""Device ids by pod, container and resource."""


def check(evidence: Evidence) -> Iterator[Finding]:
    by_uid = {pod.uid: pod for pod in map(Pod.of, evidence.pods)}
    for node, files in evidence.files.items():
        yield from _twice(node, files, by_uid)
        if files.pod_resources is not None:
            yield from _differ(node, files, by_uid)


def _twice(node: str, files: NodeFiles, by_uid: Mapping[str, Pod]) -> Iterator[Finding]:
    holders: defaultdict[tuple[str, str], list[Held]] = defaultdict(list)
    for entry in files.checkpoint:
        pod = by_uid.get(entry.pod_uid)
        if pod is not None and pod.live:
            for device in entry.device_ids:
                holders[entry.resource, device].append(entry)
    for (resource, device), entries in sorted(holders.items()):
        clashing = [
            f"{one.container} of pod {one.pod_uid}"
            for index, one in enumerate(entries)
            if any(
                _at_once(one, other, by_uid)
                for place, other in enumerate(entries)
                if place != index
            )
        ]
        if clashing:
            yield Finding(
                Kind.DEVICE_TWICE,
                f"node {node} {resource} {device}",
                f"held at once by containers {' and '.join(sorted(clashing))} "
                f"(kubelet's checkpoint)",
            )


def _at_once(one: Held, other: Held, by_uid: Mapping[str, Pod]) -> bool:
    """Return whether two containers can be alive together."""
    if one.pod_uid != other.pod_uid:
        return True
    pod = by_uid[one.pod_uid]
    names = [container.name for container in pod.containers]
    if one.container not in names or other.container not in names:
        return True
    earlier = min(one.container, other.container, key=names.index)
    container = pod.container(earlier)
    return container is None or container.kind is not ContainerKind.INIT


def _differ(node: str, files: NodeFiles, by_uid: Mapping[str, Pod]) -> Iterator[Finding]:
    """Compare containers that run and stay; PodResources leaves out init containers."""
    kept: _Books = {}
    for entry in files.checkpoint:
        pod = by_uid.get(entry.pod_uid)
        if pod is not None:
            key = (pod.full_name, entry.container, entry.resource)
            kept[key] = kept.get(key, frozenset()) | entry.device_ids
    told: _Books = {
        (f"{row.namespace}/{row.pod}", row.container, row.resource): row.device_ids
        for row in files.pod_resources or ()
    }
    staying = {
        (pod.full_name, container.name)
        for pod in by_uid.values()
        if pod.live and pod.node == node
        for container in pod.containers
        if container.running and container.kind is not ContainerKind.INIT
    }
    for key in sorted(set(kept) | set(told)):
        pod_name, container_name, resource = key
        here, there = kept.get(key, frozenset()), told.get(key, frozenset())
        if (pod_name, container_name) in staying and here != there:
            yield Finding(
                Kind.RESOURCES_DIFFER,
                f"node {node} container {container_name} of {pod_name} {resource}",
                f"kubelet's checkpoint has {sorted(here)}, its PodResources has {sorted(there)}",
            )
