"""Selectors of fields: the few fields of a kind that `fieldSelector` knows, and their values."""

from __future__ import annotations

import re
from collections.abc import Callable

from hami_sandbox.apiserver.kind import Kind
from hami_sandbox.apiserver.refusals import Object, bad_request

Test = Callable[[Object], bool]
Value = Callable[[Object], str]

_TERM = re.compile(r"([^=!]*)(==|!=|=)(.*)", re.DOTALL)
_VALUE = re.compile(r"(?:[^\\=]|\\[\\,=])*", re.DOTALL)
_COMMON = frozenset(["metadata.name", "metadata.namespace"])
#: Fields that are false unless they are there.
_BOOLEAN = frozenset(["spec.unschedulable", "spec.hostNetwork"])


class Term:
    """A condition: this field is, or is not, this text."""

    __slots__ = ("equal", "field", "value")

    def __init__(self, field: str, value: str, *, equal: bool) -> None:
        self.field = field
        self.value = value
        self.equal = equal


def parse(kind: Kind, text: str) -> list[Term]:
    """Return the conditions of a selector; all of them must hold."""
    terms = []
    for part in _split(text):
        if not part.strip():
            continue
        found = _TERM.fullmatch(part.strip())
        if found is None:
            raise bad_request(f"invalid selector: '{text}'; can't understand '{part}'")
        field, operator, value = found.groups()
        if field not in _COMMON and field not in kind.fields:
            raise bad_request(f'field label not supported: "{field}" (of {kind.qualified})')
        terms.append(Term(field, _unescaped(text, value), equal=operator != "!="))
    return terms


def test_of(term: Term) -> Test:
    """Return the test that a condition describes."""
    value_of, wanted = value(term.field), term.value
    if term.equal:
        return lambda found: value_of(found) == wanted
    return lambda found: value_of(found) != wanted


def value(field: str) -> Value:
    """Return how the value of a field is read; what is not there is empty."""
    if field == "source":
        return _source
    if field == "status.successful":
        return lambda found: str(found.get("status", {}).get("succeeded", 0))
    path = _as_stored(field).split(".")
    missing = "false" if field in _BOOLEAN else "0" if field == "status.replicas" else ""

    def read(found: Object) -> str:
        at: object = found
        for name in path:
            if not isinstance(at, dict):
                return missing
            at = at.get(name)
        return missing if at is None else _text(at)

    return read


def _as_stored(field: str) -> str:
    """Return the name of a field where objects are stored; the newer group renames some."""
    if field == "reportingController":
        return "reportingComponent"
    return field.replace("regarding.", "involvedObject.", 1)


def _source(found: Object) -> str:
    component = found.get("source", {}).get("component") or found.get("reportingComponent")
    return str(component or "")


def _text(found: object) -> str:
    if isinstance(found, bool):
        return "true" if found else "false"
    return str(found)


def _split(text: str) -> list[str]:
    r"""Split at commas, but not at `\,`."""
    return re.findall(r"(?:[^,\\]|\\.)+", text, re.DOTALL)


def _unescaped(text: str, value: str) -> str:
    if not _VALUE.fullmatch(value):
        raise bad_request(f"invalid selector: '{text}'; can't understand '{value}'")
    return re.sub(r"\\(.)", r"\1", value)
