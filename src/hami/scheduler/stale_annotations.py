"""Decisions that stand in a pod's annotations, though the pod was never bound.

HAMi writes its decision into the pod first and binds later. If that bind never comes, the cards
stay taken for ever. Here such a decision lives as long as our own reservations do
(`--reservation-timeout`), from the time it was made (`hami.io/vgpu-time`). A decision without a
readable time is as old as its pod.
"""

from __future__ import annotations

import datetime as dt

import msgspec

from hami.wire import annotation_keys, errors, go_values, objects


def end_of(pod: objects.Pod, life: float) -> float | None:
    """Return when the decision ends, in seconds since the epoch; None: there is nothing to end."""
    if pod.node_name or pod.finished or not pod.annotation(annotation_keys.ASSIGNED_NODE):
        return None
    return _made(pod) + life


def without(pod: objects.Pod) -> objects.Pod:
    """Return the pod as if the decision had never been written."""
    assert pod.metadata is not None
    kept = {k: v for k, v in pod.annotations.items() if k != annotation_keys.ASSIGNED_NODE}
    metadata = msgspec.structs.replace(pod.metadata, annotations=kept)
    return msgspec.structs.replace(pod, metadata=metadata)


def _made(pod: objects.Pod) -> float:
    value = pod.annotation(annotation_keys.ASSIGNED_TIME)
    try:
        return float(go_values.parse_int32(value, what=annotation_keys.ASSIGNED_TIME))
    except errors.WireError:
        created = (pod.metadata and pod.metadata.creation_timestamp) or ""
    try:
        return dt.datetime.fromisoformat(created).timestamp()
    except ValueError:
        return 0.0
