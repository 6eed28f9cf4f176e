"""Fields that API objects share: selectors, times, phases, the version.

Selectors are those that objects have, with matchLabels and matchExpressions. Times are in UTC and
in whole seconds. KUBERNETES is the version that the sandbox stands in for.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence
from typing import Any

#: JSON's null is an empty text, as Go reads it.
Labels = Mapping[str, str | None]


def matches(selector: Mapping[str, Any] | None, labels: Labels | None) -> bool:
    """Return whether labels match a selector; an empty or missing one matches everything."""
    if not selector:
        return True
    labels = labels or {}
    return all(
        labels.get(key) == value for key, value in (selector.get("matchLabels") or {}).items()
    ) and all(
        meets(each["key"], each["operator"], each.get("values"), labels)
        for each in selector.get("matchExpressions") or ()
    )


def meets(key: str, operator: str, values: Sequence[str] | None, labels: Labels) -> bool:
    """Return whether labels match one expression; an unknown operator never matches."""
    there = key in labels
    value = labels.get(key) or ""
    match operator:
        case "In":
            return there and value in (values or ())
        case "NotIn":
            return not there or value not in (values or ())
        case "Exists":
            return there
        case "DoesNotExist":
            return not there
    return False


def as_query(selector: Mapping[str, Any] | None) -> str:
    """Return a selector as the query parameter labelSelector."""
    if not selector:
        return ""
    parts = [f"{key}={value}" for key, value in (selector.get("matchLabels") or {}).items()]
    for each in selector.get("matchExpressions") or ():
        key, values = each["key"], ",".join(each.get("values") or ())
        match each["operator"]:
            case "In":
                parts.append(f"{key} in ({values})")
            case "NotIn":
                parts.append(f"{key} notin ({values})")
            case "Exists":
                parts.append(key)
            case "DoesNotExist":
                parts.append(f"!{key}")
    return ",".join(parts)


def now() -> dt.datetime:
    return dt.datetime.now(dt.UTC)


def stamp(moment: dt.datetime) -> str:
    """Write a time as the API does."""
    return moment.astimezone(dt.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def stamp_at(seconds: float) -> str:
    """Write a time that is given in seconds since 1970."""
    return stamp(dt.datetime.fromtimestamp(seconds, dt.UTC))


def read(text: str) -> dt.datetime:
    """Read a time of the API."""
    return dt.datetime.fromisoformat(text)


ENDED = frozenset({"Succeeded", "Failed"})


KUBERNETES = "v1.36.3"
#: As users name it: 1.36.
KUBERNETES_MINOR = KUBERNETES.removeprefix("v").rpartition(".")[0]
