"""Requests to evict a marked pod: the pod as it is now, body and messages.

A pod evicted for overuse has ten minutes to end, at most: by its own spec it could go on for years,
and so could one that its owner has deleted. A pod that was refused and has started since is left
alone; the agent could not remove its mark, and both times are the node's. Pure.
"""

from __future__ import annotations

import datetime as dt

from hami.scheduler.watched import WatchedPod
from hami.wire import codec
from hami.wire.pod_marks import Overuse, Refusal

#: Seconds that a pod evicted for overuse has to end, at most, whatever its own spec says.
LONGEST_END_S = 600
_MIB = 2**20


class _Run(codec.Object, frozen=True):
    started_at: str | None = None


class _State(codec.Object, frozen=True):
    running: _Run | None = None
    terminated: _Run | None = None


class _ContainerStatus(codec.Object, frozen=True):
    state: _State | None = None
    last_state: _State | None = None

    def started_after(self, time: dt.datetime) -> bool:
        states = [state for state in (self.state, self.last_state) if state is not None]
        runs = [run for state in states for run in (state.running, state.terminated)]
        found = [_time(run.started_at) for run in runs if run is not None]
        return any(started is not None and started > time for started in found)


class _Status(codec.Object, frozen=True):
    container_statuses: list[_ContainerStatus] | None = None
    init_container_statuses: list[_ContainerStatus] | None = None


class _Ending(codec.Object, frozen=True):
    deletion_grace_period_seconds: int | None = None
    termination_grace_period_seconds: int | None = None


class PodNow(codec.Object, frozen=True):
    """The part of a pod that only evictions read."""

    metadata: _Ending | None = None
    spec: _Ending | None = None
    status: _Status | None = None

    def started_after(self, refusal: Refusal) -> bool:
        """Return whether it started after all: all containers run, or one began since then."""
        status = self.status or _Status()
        apps = status.container_statuses or []
        if apps and all(s.state and s.state.running is not None for s in apps):
            return True
        # Both times are the node's.
        refused = _time(refusal.seen)
        each = [*apps, *(status.init_container_statuses or [])]
        return refused is not None and any(s.started_after(refused) for s in each)

    @property
    def deleted_for_long(self) -> bool:
        """Whether it was deleted, and may go on for longer than we would let it."""
        seconds = self.metadata and self.metadata.deletion_grace_period_seconds
        return (seconds or 0) > LONGEST_END_S

    @property
    def end_s(self) -> int | None:
        """Seconds that it is given to end; None: as its spec says."""
        own = (self.spec and self.spec.termination_grace_period_seconds) or 0
        return LONGEST_END_S if own > LONGEST_END_S or self.deleted_for_long else None


def reason(cause: Overuse | Refusal) -> str:
    return "overuse" if isinstance(cause, Overuse) else "refused"


def eviction(pod: WatchedPod, version: str, end_s: int | None) -> bytes:
    options: dict[str, object] = {"preconditions": {"uid": pod.uid, "resourceVersion": version}}
    if end_s is not None:
        options["gracePeriodSeconds"] = end_s
    return codec.encode(
        {
            "apiVersion": "policy/v1",
            "kind": "Eviction",
            "metadata": {"name": pod.name, "namespace": pod.namespace},
            "deleteOptions": options,
        }
    )


def why(cause: Overuse | Refusal) -> str:
    if isinstance(cause, Refusal):
        return f"was refused again and again by the agent on {cause.node}: {cause.reason}"
    container = f" in container {cause.container}" if cause.container else ""
    limit = f"its limit is {cause.limit // _MIB} MiB" if cause.limit else "it was not given this"
    return (
        f"had {cause.used // _MIB} MiB of card {cause.card} on {cause.node}{container} by the "
        f"driver's account since {cause.since}, but {limit}"
    )


def remedy(cause: Overuse | Refusal) -> str:
    if isinstance(cause, Refusal):
        return "A pod that its controller creates in its place is scheduled again"
    if cause.limit:
        return (
            "Ask for more memory of the card in the pod's limits, or use less; programs that avoid "
            "libvgpu (static ones, own preloads) are not kept within their limit"
        )
    return "Ask for a card in the pod's limits: a container may use only the cards it was given"


def _time(text: str | None) -> dt.datetime | None:
    """Read a time of Kubernetes or of a mark; None: it is none."""
    try:
        found = dt.datetime.fromisoformat(text or "")
    except ValueError:
        return None
    return found if found.tzinfo is not None else None
