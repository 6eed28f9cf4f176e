"""Label and field selectors of lists and watches.

A Selection tests an object's namespace, labels and fields. Field selectors know only the few
fields that Kubernetes has for a kind.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from hami_sandbox.apiserver.kinds import Kind
from hami_sandbox.apiserver.refusals import Object, Refusal, bad_request
from hami_sandbox.apiserver.schema import names

Labels = Mapping[str, str]
LabelTest = Callable[[Labels], bool]

_TOKEN = re.compile(r"\s*(==|!=|[()!=<>,]|[^\s()!=<>,]+)")
_SYMBOLS = frozenset(["==", "!=", "(", ")", "!", "=", "<", ">", ","])


FieldTest = Callable[[Object], bool]
Value = Callable[[Object], str]

_TERM = re.compile(r"([^=!]*)(==|!=|=)(.*)", re.DOTALL)
_VALUE = re.compile(r"(?:[^\\=]|\\[\\,=])*", re.DOTALL)
_COMMON = frozenset(["metadata.name", "metadata.namespace"])
#: Fields that are false unless they are there.
_BOOLEAN = frozenset(["spec.unschedulable", "spec.hostNetwork"])


class Selection:
    """A test of objects. `namespace` and `name` are known, so that an index can be used."""

    __slots__ = ("_fields", "_labels", "name", "namespace", "selective")

    def __init__(
        self,
        kind: Kind,
        *,
        namespace: str = "",
        name: str = "",
        label_selector: str = "",
        field_selector: str = "",
    ) -> None:
        self._labels = parse_labels(label_selector)
        terms = parse_fields(kind, field_selector)
        #: Whether anything but the namespace is asked for.
        self.selective = self._labels is not None or bool(terms) or bool(name)
        self.namespace = namespace
        self.name = name
        tests = []
        for term in terms:
            if term.equal and term.value and self._indexed(term):
                continue
            tests.append(test_of(term))
        self._fields = tests

    def matches(self, found: Object) -> bool:
        metadata = found["metadata"]
        if self.namespace and metadata.get("namespace") != self.namespace:
            return False
        if self.name and metadata["name"] != self.name:
            return False
        if self._labels is not None and not self._labels(metadata.get("labels") or {}):
            return False
        return all(test(found) for test in self._fields)

    def _indexed(self, term: Term) -> bool:
        """Take a condition that names the object or its namespace; not if another did before."""
        if term.field == "metadata.name" and not self.name:
            self.name = term.value
            return True
        if term.field == "metadata.namespace" and not self.namespace:
            self.namespace = term.value
            return True
        return False


def parse_labels(text: str) -> LabelTest | None:
    """Return the test that a selector describes; None for one that selects everything."""
    parser = _Parser(text)
    tests: list[LabelTest] = []
    while parser.rest:
        tests.append(parser.requirement())
        if parser.rest:
            parser.expect(",")
            if not parser.rest:
                raise parser.unable("found '', expected: identifier after ','")
    if not tests:
        return None
    if len(tests) == 1:
        return tests[0]
    return lambda labels: all(test(labels) for test in tests)


class _Parser:
    """The words of a selector, taken from the front."""

    def __init__(self, text: str) -> None:
        self._text = text
        self.rest = _TOKEN.findall(text)[::-1]

    def requirement(self) -> LabelTest:
        """Take one condition."""
        if self._peek() == "!":
            self._take()
            key = self._key()
            return lambda labels: key not in labels
        key = self._key()
        operator = self._peek()
        if operator in {"", ","}:
            return lambda labels: key in labels
        return self._compared(key, self._take())

    def _compared(self, key: str, operator: str) -> LabelTest:
        if operator in {"=", "=="}:
            value = self._value()
            return lambda labels: labels.get(key) == value
        if operator == "!=":
            value = self._value()
            return lambda labels: labels.get(key) != value
        if operator in {"in", "notin"}:
            values = self._values()
            if operator == "in":
                return lambda labels: labels.get(key) in values
            return lambda labels: key not in labels or labels[key] not in values
        if operator in {"<", ">"}:
            return _compared(key, self._number(), greater=operator == ">")
        raise self.unable(f"found '{operator}', expected: in, notin, =, ==, !=, gt, lt, '>' or '<'")

    def expect(self, symbol: str) -> None:
        found = self._take()
        if found != symbol:
            raise self.unable(f"found '{found}', expected: '{symbol}'")

    def unable(self, why: str) -> Refusal:
        return bad_request(
            f'unable to parse requirement: {why} (in the label selector "{self._text}")'
        )

    def _peek(self) -> str:
        return self.rest[-1] if self.rest else ""

    def _take(self) -> str:
        return self.rest.pop() if self.rest else ""

    def _key(self) -> str:
        key = self._take()
        if names.qualified(key):
            raise self.unable(f"found '{key}', expected: the key of a label")
        return key

    def _value(self) -> str:
        """Take a value; none at all is the empty one."""
        if self._peek() in {"", ",", ")"}:
            return ""
        value = self._take()
        if value in _SYMBOLS or names.label_value(value):
            raise self.unable(f"found '{value}', expected: the value of a label")
        return value

    def _values(self) -> frozenset[str]:
        self.expect("(")
        values = {self._value()}
        while self._peek() == ",":
            self._take()
            values.add(self._value())
        self.expect(")")
        return frozenset(values)

    def _number(self) -> int:
        text = self._take()
        number = _integer(text)
        if number is None:
            raise self.unable(f"found '{text}', expected: an integer")
        return number


def _compared(key: str, bound: int, *, greater: bool) -> LabelTest:
    def test(labels: Labels) -> bool:
        number = _integer(labels.get(key, ""))
        if number is None:
            return False
        return number > bound if greater else number < bound

    return test


def _integer(text: str) -> int | None:
    return int(text) if re.fullmatch(r"[+-]?[0-9]+", text) else None


class Term:
    """A condition: this field is, or is not, this text."""

    __slots__ = ("equal", "field", "value")

    def __init__(self, field: str, value: str, *, equal: bool) -> None:
        self.field = field
        self.value = value
        self.equal = equal


def parse_fields(kind: Kind, text: str) -> list[Term]:
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


def test_of(term: Term) -> FieldTest:
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
