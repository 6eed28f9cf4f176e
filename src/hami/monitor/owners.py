"""Whose a process is: a container of ours, another pod's, or nobody's.

The control group decides about the pod: the kernel keeps it, and no tenant leaves it. The token
among the mounts decides about the container, where it belongs to that pod; else the runtime's id of
the container does, which the API server translates.
"""

from __future__ import annotations

from typing import Protocol

import msgspec

from hami.monitor.containers import Container, Containers, Key
from hami.monitor.pods import Seen
from hami.monitor.proc import Place, Trace


class Owner(msgspec.Struct, frozen=True, kw_only=True):
    """Empty names: not known, or of no pod at all."""

    key: Key = Key("", "")
    namespace: str = ""
    pod: str = ""
    #: What the agent gave it; None: nothing.
    container: Container | None = None


NOBODY = Owner()


class PodsByUid(Protocol):
    def get(self, uid: str) -> Seen | None: ...


def owner_of(trace: Trace, containers: Containers, pods: PodsByUid) -> Owner:
    place = _place(trace, containers, pods)
    for token in trace.tokens:
        container = containers.by_token.get(token)
        if container is not None and place.uid in ("", container.key.uid):
            return _ours(container)
    if not place.uid:
        return NOBODY
    pod = pods.get(place.uid)
    name = pod.ids.get(place.container_id, "") if pod is not None else ""
    candidates = [
        container
        for container in containers.by_uid.get(place.uid, ())
        if not name or container.key.container == name
    ]
    if len(candidates) == 1:
        return _ours(candidates[0])
    named = candidates[0] if candidates else None
    return Owner(
        key=Key(place.uid, name),
        namespace=pod.namespace if pod else named.namespace if named else "",
        pod=pod.name if pod else named.pod if named else "",
    )


def _place(trace: Trace, containers: Containers, pods: PodsByUid) -> Place:
    """Choose the pod that is known here: a cluster may itself run in a pod of another."""
    for place in trace.places:
        if place.uid in containers.by_uid or pods.get(place.uid) is not None:
            return place
    return trace.places[0] if trace.places else Place("", "")


def _ours(container: Container) -> Owner:
    return Owner(
        key=container.key, namespace=container.namespace, pod=container.pod, container=container
    )
