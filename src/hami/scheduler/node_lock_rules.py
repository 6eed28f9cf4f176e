"""Whether the lock on a node still means something.

HAMi's lock says which pod is between bind and Allocate. It is a text with a time, and whoever
should remove it may have died. Time alone proves nothing (a slow image or a waiting kubelet is no
crime, and a stolen lock serves a pod with another one's cards), so the owner is looked at: a lock
is stale when its pod cannot be waiting for Allocate any more. Pure; `hami.scheduler.bind_queue`
acts on the verdict.
"""

from __future__ import annotations

import datetime as dt

import msgspec

from hami.wire import annotation_keys, errors, node_lock, objects

#: Seconds after which an owner that is still not bound has lost its Binding: no write takes longer.
BINDING_GRACE_S = 15.0


class Verdict(msgspec.Struct, frozen=True):
    held: bool
    why: str


def owner(value: str) -> tuple[str, str] | None:
    """Return namespace and name of the pod a lock names; None if it names none."""
    try:
        lock = node_lock.decode(value)
    except errors.WireError:
        return None
    return (lock.namespace, lock.name) if lock.name else None


def judge(  # noqa: PLR0911  one line per rule
    value: str,
    *,
    node: str,
    pod: objects.Pod | None,
    now: dt.datetime,
    seen_for: float,
    timeout: float,
) -> Verdict:
    """Judge a lock; `pod` is its owner as the API server has it, `seen_for` how long we know it."""
    try:
        lock = node_lock.decode(value)
    except errors.WireError as error:
        return Verdict(seen_for < timeout, str(error))
    age = max((now - lock.time).total_seconds(), seen_for)
    if not lock.name:
        return Verdict(age < timeout, "it names no pod")
    if pod is None:
        return Verdict(held=False, why="its pod is gone")
    if pod.finished:
        return Verdict(held=False, why=f"its pod is {pod.phase}")
    if _created(pod) > lock.time + dt.timedelta(seconds=1):
        return Verdict(held=False, why="its pod was deleted, another has its name")
    if not pod.node_name:
        return Verdict(age < BINDING_GRACE_S, "its pod is not bound")
    if pod.node_name != node:
        return Verdict(held=False, why=f"its pod is on {pod.node_name}")
    phase = pod.annotation(annotation_keys.BIND_PHASE)
    if phase in ("success", "failed") or pod.phase == "Running":
        return Verdict(held=False, why=f"its pod has its cards (bind-phase {phase or 'unknown'})")
    return Verdict(held=True, why=f"its pod waits for kubelet for {age:.0f} s")


def _created(pod: objects.Pod) -> dt.datetime:
    text = (pod.metadata and pod.metadata.creation_timestamp) or ""
    try:
        return dt.datetime.fromisoformat(text)
    except ValueError:
        return dt.datetime.min.replace(tzinfo=dt.UTC)
