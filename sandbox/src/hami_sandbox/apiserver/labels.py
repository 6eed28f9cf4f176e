"""Selectors of labels: the grammar of `labelSelector`, as a test of an object's labels."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from hami_sandbox.apiserver.refusals import Refusal, bad_request
from hami_sandbox.apiserver.schema import names

Labels = Mapping[str, str]
Test = Callable[[Labels], bool]

_TOKEN = re.compile(r"\s*(==|!=|[()!=<>,]|[^\s()!=<>,]+)")
_SYMBOLS = frozenset(["==", "!=", "(", ")", "!", "=", "<", ">", ","])


def parse(text: str) -> Test | None:
    """Return the test that a selector describes; None for one that selects everything."""
    parser = _Parser(text)
    tests: list[Test] = []
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

    def requirement(self) -> Test:
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

    def _compared(self, key: str, operator: str) -> Test:
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


def _compared(key: str, bound: int, *, greater: bool) -> Test:
    def test(labels: Labels) -> bool:
        number = _integer(labels.get(key, ""))
        if number is None:
            return False
        return number > bound if greater else number < bound

    return test


def _integer(text: str) -> int | None:
    return int(text) if re.fullmatch(r"[+-]?[0-9]+", text) else None
