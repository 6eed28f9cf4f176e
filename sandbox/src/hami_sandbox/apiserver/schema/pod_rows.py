"""A pod's row in kubectl's table; ages, durations and selectors as cells."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable
from typing import Any

from hami_sandbox.apiserver.refusals import Object

NONE, UNKNOWN = "<none>", "<unknown>"

_MINUTE, _HOUR, _DAY = 60, 3600, 86400
_YEAR = 365 * _DAY


def age(moment: Any, now: dt.datetime) -> str:
    """Return how long ago a time of an object was, as kubectl writes it."""
    if not isinstance(moment, str) or not moment:
        return UNKNOWN
    try:
        then = dt.datetime.fromisoformat(moment)
    except ValueError:
        return UNKNOWN
    return duration((now - then).total_seconds())


def duration(seconds: float) -> str:
    """Return a span in one or two units, the finer the shorter it is."""
    whole = int(seconds)
    if whole < -1:
        return "<invalid>"
    whole = max(whole, 0)
    if whole < 2 * _MINUTE:
        return f"{whole}s"
    for below, unit, name, finer, finer_name in (
        (10 * _MINUTE, _MINUTE, "m", 1, "s"),
        (3 * _HOUR, _MINUTE, "m", 0, ""),
        (8 * _HOUR, _HOUR, "h", _MINUTE, "m"),
        (2 * _DAY, _HOUR, "h", 0, ""),
        (8 * _DAY, _DAY, "d", _HOUR, "h"),
        (2 * _YEAR, _DAY, "d", 0, ""),
        (8 * _YEAR, _YEAR, "y", _DAY, "d"),
    ):
        if whole < below:
            rest = (whole % unit) // finer if finer else 0
            return f"{whole // unit}{name}" + (f"{rest}{finer_name}" if rest else "")
    return f"{whole // _YEAR}y"


def joined(values: Iterable[str]) -> str:
    """Return values with commas, or that there are none."""
    return ",".join(values) or NONE


def selector(found: Any) -> str:
    """Return a label selector, or a map of labels, in one line."""
    if not found:
        return NONE
    if "matchLabels" not in found and "matchExpressions" not in found:
        return joined(f"{key}={found[key]}" for key in sorted(found))
    labels = found.get("matchLabels") or {}
    parts = [f"{key}={labels[key]}" for key in sorted(labels)]
    for rule in found.get("matchExpressions") or ():
        key, values = rule.get("key", ""), ",".join(sorted(rule.get("values") or ()))
        written = {
            "In": f"{key} in ({values})",
            "NotIn": f"{key} notin ({values})",
            "Exists": key,
            "DoesNotExist": f"!{key}",
        }
        parts.append(written.get(rule.get("operator", ""), key))
    return joined(parts)


_ENDED = frozenset({"Succeeded", "Failed"})


def row(pod: Object, now: dt.datetime) -> list[Any]:
    """Return all cells, those of the wide form last."""
    spec, status = pod.get("spec") or {}, pod.get("status") or {}
    restartable = _sidecars(spec)
    ready, total, restarts, last = _counts(spec, status, restartable)
    word = _state(pod, spec, status, restartable)
    shown = str(restarts)
    if restarts and last:
        shown = f"{restarts} ({age(last, now)} ago)"
    addresses = [each.get("ip", "") for each in status.get("podIPs") or ()]
    return [
        pod["metadata"]["name"],
        f"{ready}/{total}",
        word,
        shown,
        age(pod["metadata"].get("creationTimestamp"), now),
        (addresses[0] if addresses else status.get("podIP")) or NONE,
        spec.get("nodeName") or NONE,
        status.get("nominatedNodeName") or NONE,
        _gates(spec, status),
    ]


def _sidecars(spec: Object) -> frozenset[str]:
    return frozenset(
        each.get("name", "")
        for each in spec.get("initContainers") or ()
        if each.get("restartPolicy") == "Always"
    )


def _counts(
    spec: Object, status: Object, sidecars: frozenset[str]
) -> tuple[int, int, int, str | None]:
    """Return ready containers, all containers, restarts and the time of the last one."""
    total = len(spec.get("containers") or ()) + len(sidecars)
    inits = status.get("initContainerStatuses") or ()
    mains = status.get("containerStatuses") or ()
    aside = [each for each in inits if each.get("name") in sidecars]
    counted = [*aside, *mains] if _initialised(spec, status, sidecars) else [*inits]
    ready = sum(1 for each in (*aside, *mains) if each.get("ready") and _running(each))
    restarts = sum(each.get("restartCount", 0) for each in counted)
    ends = [
        each["lastState"]["terminated"].get("finishedAt")
        for each in counted
        if (each.get("lastState") or {}).get("terminated")
    ]
    return ready, total, restarts, max((end for end in ends if end), default=None)


def _running(each: Object) -> bool:
    return "running" in (each.get("state") or {})


def _initialised(spec: Object, status: Object, sidecars: frozenset[str]) -> bool:
    """Whether the main containers count: a sidecar may end, even badly, when all is done."""
    return _is_true(status, "Initialized") or not _initialising(spec, status, sidecars)


def _is_true(status: Object, condition: str) -> bool:
    return any(
        each.get("type") == condition and each.get("status") == "True"
        for each in status.get("conditions") or ()
    )


def _state(pod: Object, spec: Object, status: Object, sidecars: frozenset[str]) -> str:
    phase = status.get("phase") or ""
    word = status.get("reason") or phase
    if any(
        each.get("type") == "PodScheduled" and each.get("reason") == "SchedulingGated"
        for each in status.get("conditions") or ()
    ):
        word = "SchedulingGated"
    word = _initialising(spec, status, sidecars) or word
    if _initialised(spec, status, sidecars):
        word = _main_state(status, word, phase)
    if pod["metadata"].get("deletionTimestamp"):
        if status.get("reason") == "NodeLost":
            return "Unknown"
        if phase not in _ENDED:
            return "Terminating"
    return word


def _initialising(spec: Object, status: Object, sidecars: frozenset[str]) -> str:
    """Return how far the init containers are; nothing if they are through."""
    total = len(spec.get("initContainers") or ())
    for place, each in enumerate(status.get("initContainerStatuses") or ()):
        state = each.get("state") or {}
        ended, waiting = state.get("terminated"), state.get("waiting")
        if ended is not None and ended.get("exitCode") == 0:
            continue
        if each.get("name") in sidecars and each.get("started"):
            continue
        if ended is not None:
            return f"Init:{_end(ended)}"
        if waiting is not None and waiting.get("reason") not in {None, "", "PodInitializing"}:
            return f"Init:{waiting['reason']}"
        return f"Init:{place}/{total}"
    return ""


def _main_state(status: Object, word: str, phase: str) -> str:
    running = False
    for each in reversed(status.get("containerStatuses") or ()):
        state = each.get("state") or {}
        waiting, ended = state.get("waiting"), state.get("terminated")
        if waiting is not None and waiting.get("reason"):
            word = waiting["reason"]
        elif ended is not None:
            word = _end(ended)
        elif each.get("ready") and "running" in state:
            running = True
    if word == "Completed" and running:
        return "Running" if _is_true(status, "Ready") else "NotReady"
    return word or phase


def _end(ended: Object) -> str:
    if ended.get("reason"):
        return str(ended["reason"])
    if ended.get("signal"):
        return f"Signal:{ended['signal']}"
    return f"ExitCode:{ended.get('exitCode', 0)}"


def _gates(spec: Object, status: Object) -> str:
    gates = [each.get("conditionType") for each in spec.get("readinessGates") or ()]
    if not gates:
        return NONE
    true = {
        each.get("type") for each in status.get("conditions") or () if each.get("status") == "True"
    }
    return f"{sum(1 for gate in gates if gate in true)}/{len(gates)}"
