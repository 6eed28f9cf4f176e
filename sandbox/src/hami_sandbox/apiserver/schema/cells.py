"""Small texts in kubectl's tables: ages, and what stands where nothing is."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable
from typing import Any

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
