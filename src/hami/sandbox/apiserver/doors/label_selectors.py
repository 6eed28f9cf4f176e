"""Label selectors as objects carry them: matchLabels and matchExpressions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Labels = Mapping[str, str]


def matches(selector: Mapping[str, Any] | None, labels: Labels | None) -> bool:
    """Return whether all of it holds; an empty selector takes everything, a missing one too."""
    if not selector:
        return True
    labels = labels or {}
    return all(
        labels.get(key) == value for key, value in (selector.get("matchLabels") or {}).items()
    ) and all(_holds(each, labels) for each in selector.get("matchExpressions") or ())


def as_query(selector: Mapping[str, Any] | None) -> str:
    """Return it as the text of the query parameter labelSelector."""
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


def _holds(expression: Mapping[str, Any], labels: Labels) -> bool:
    key, values = expression["key"], expression.get("values") or ()
    match expression["operator"]:
        case "In":
            return labels.get(key) in values
        case "NotIn":
            return key not in labels or labels[key] not in values
        case "Exists":
            return key in labels
        case "DoesNotExist":
            return key not in labels
    return False
