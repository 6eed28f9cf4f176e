"""The status of a deployment: counts, whether it is available, and how its rollout goes."""

from __future__ import annotations

import datetime as dt

from hami_sandbox import times
from hami_sandbox.controllers import rolling
from hami_sandbox.controllers.api import Object

_DEADLINE = 600


def status(
    owner: Object, new: Object | None, old: list[Object], *, now: dt.datetime
) -> tuple[Object, float | None]:
    """Return the status, and in how many seconds time alone may change it."""
    spec, before = owner["spec"], owner.get("status") or {}
    wanted: int = spec.get("replicas", 1)
    sets = [*old, new] if new is not None else old
    total, available = _sum(sets, "replicas"), _sum(sets, "availableReplicas")
    updated = _sum([new] if new is not None else [], "replicas")
    complete = updated == wanted == available == total
    told: Object = {
        "observedGeneration": owner["metadata"].get("generation"),
        "replicas": total or None,
        "updatedReplicas": updated or None,
        "readyReplicas": _sum(sets, "readyReplicas") or None,
        "availableReplicas": available or None,
        "unavailableReplicas": max(0, max(total, wanted) - available) or None,
    }
    moved = any(
        before.get(key) != told[key]
        for key in ("replicas", "updatedReplicas", "readyReplicas", "availableReplicas")
    )
    conditions = [_available(owner, available, now)]
    wait = None
    if not spec.get("paused"):
        progress, wait = _progress(owner, new, now, complete=complete, moved=moved)
        conditions.append(progress)
    told["conditions"] = conditions
    return told, wait


def _available(owner: Object, available: int, now: dt.datetime) -> Object:
    spec = owner["spec"]
    wanted = spec.get("replicas", 1)
    strategy = spec.get("strategy") or {}
    missing = 0
    if strategy.get("type") != "Recreate":
        rule = strategy.get("rollingUpdate") or {}
        limits = rolling.bounds(
            wanted, rule.get("maxSurge", "25%"), rule.get("maxUnavailable", "25%")
        )
        missing = limits.unavailable
    made = {
        "type": "Available",
        "status": "True",
        "reason": "MinimumReplicasAvailable",
        "message": "Deployment has minimum availability.",
    }
    if available < wanted - missing:
        made |= {
            "status": "False",
            "reason": "MinimumReplicasUnavailable",
            "message": "Deployment does not have minimum availability.",
        }
    return _since(owner, made, now)


def _progress(
    owner: Object, new: Object | None, now: dt.datetime, *, complete: bool, moved: bool
) -> tuple[Object, float | None]:
    name = f'ReplicaSet "{new["metadata"]["name"]}"' if new is not None else "Deployment"
    made = {"type": "Progressing", "status": "True"}
    if complete:
        made["reason"] = "NewReplicaSetAvailable"
        made["message"] = f"{name} has successfully progressed."
        return _since(owner, made, now), None
    before = _found(owner, "Progressing")
    deadline = owner["spec"].get("progressDeadlineSeconds", _DEADLINE)
    if before is None or moved or before["reason"] == "NewReplicaSetAvailable":
        made["reason"] = "ReplicaSetUpdated"
        made["message"] = f"{name} is progressing."
        return _since(owner, made, now) | {"lastUpdateTime": times.stamp(now)}, float(deadline)
    left = (times.read(before["lastUpdateTime"]) - now).total_seconds() + deadline
    if left > 0 and before["status"] == "True":
        return before, left
    made = {
        "type": "Progressing",
        "status": "False",
        "reason": "ProgressDeadlineExceeded",
        "message": f"{name} has timed out progressing.",
    }
    return _since(owner, made, now), None


def _since(owner: Object, made: Object, now: dt.datetime) -> Object:
    """Return the condition as it was before, or with the times at which it became what it is."""
    before = _found(owner, made["type"])
    if before is not None and made.items() <= before.items():
        return before
    since = times.stamp(now)
    if before is not None and before["status"] == made["status"]:
        since = before["lastTransitionTime"]
    return made | {"lastUpdateTime": times.stamp(now), "lastTransitionTime": since}


def _found(owner: Object, kind: str) -> Object | None:
    conditions: list[Object] = (owner.get("status") or {}).get("conditions") or []
    return next((each for each in conditions if each["type"] == kind), None)


def _sum(sets: list[Object], field: str) -> int:
    return sum((each.get("status") or {}).get(field) or 0 for each in sets)
