"""Field and label selectors, as far as hami uses them."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from tests.scripted_api.store import Object, Refused


def selector(query: Mapping[str, str]) -> Callable[[Object], bool]:
    """Return whether an object is selected: labels by = and !=, fields by a dotted path."""
    labels = _terms(query.get("labelSelector", ""))
    fields = _terms(query.get("fieldSelector", ""))

    def selected(obj: Object) -> bool:
        own = obj["metadata"].get("labels") or {}
        if any((own.get(key) == value) != equal for key, value, equal in labels):
            return False
        return not any((_field(obj, path) == value) != equal for path, value, equal in fields)

    return selected


def _terms(text: str) -> list[tuple[str, str, bool]]:
    terms = []
    for part in filter(None, text.split(",")):
        if "!=" in part:
            key, value = part.split("!=", 1)
            terms.append((key.strip(), value.strip(), False))
        elif "=" in part:
            key, value = part.replace("==", "=").split("=", 1)
            terms.append((key.strip(), value.strip(), True))
        else:
            raise Refused(400, "BadRequest", f"selector {part!r} is not scripted")
    return terms


def _field(obj: Object, path: str) -> str:
    found: object = obj
    for part in path.split("."):
        found = found.get(part) if isinstance(found, dict) else None
    return str(found) if found is not None else ""
