"""Parse CEL expressions into a tree of calls, for `cel` to evaluate.

Operators become calls of a function with the operator's name; a method call is a call with its
target as the first argument.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence
from typing import Any

import msgspec


class CelError(Exception):
    """An expression cannot be read, or fails."""


class Literal(msgspec.Struct, frozen=True):
    value: Any


class Name(msgspec.Struct, frozen=True):
    name: str


class Select(msgspec.Struct, frozen=True):
    """A field; an optional one gives an optional instead of an error."""

    of: Node
    field: str
    optional: bool = False


class Index(msgspec.Struct, frozen=True):
    of: Node
    key: Node
    optional: bool = False


class Call(msgspec.Struct, frozen=True):
    function: str
    arguments: tuple[Node, ...]
    #: Whether it was written as a method of its first argument.
    method: bool = False


class Items(msgspec.Struct, frozen=True):
    items: tuple[Node, ...]


class Entries(msgspec.Struct, frozen=True):
    entries: tuple[tuple[Node, Node], ...]


Node = Literal | Name | Select | Index | Call | Items | Entries

_TOKEN = re.compile(
    r"""
    (?P<space>[ \t\r\n]+|//[^\n]*)
  | (?P<string>[rR]?(?:\"\"\"(?:\\.|[^\\])*?\"\"\"|'''(?:\\.|[^\\])*?'''
                |"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*'))
  | (?P<float>\d+\.\d+(?:[eE][+-]?\d+)?|\d+[eE][+-]?\d+)
  | (?P<int>0x[0-9a-fA-F]+|\d+)[uU]?
  | (?P<name>[A-Za-z_][A-Za-z0-9_]*)
  | (?P<operator>&&|\|\||==|!=|<=|>=|\.\?|\[\?|[-+*/%!<>?:.,()\[\]{}])
    """,
    re.VERBOSE,
)
_WORDS = {"true": True, "false": False, "null": None}
_RELATIONS = ("==", "!=", "<", "<=", ">", ">=", "in")
#: Deeper than people write, and far from Python's own limit.
_DEEPEST = 40
_LONGEST = 50_000


class _Token(msgspec.Struct, frozen=True):
    kind: str
    text: str
    at: int


def parse(text: str) -> Node:
    """Return the tree of an expression."""
    return _Parser(text).whole()


def _tokens(text: str) -> list[_Token]:
    if len(text) > _LONGEST:
        raise CelError(f"the expression has {len(text)} characters, more than {_LONGEST}")
    found: list[_Token] = []
    at = 0
    while at < len(text):
        match = _TOKEN.match(text, at)
        if match is None:
            raise CelError(f"syntax error at character {at}: {text[at : at + 20]!r}")
        kind = match.lastgroup or ""
        if kind != "space":
            # A number's suffix for "unsigned" is ignored: integers are of one kind.
            found.append(_Token(kind, match[kind], at))
        at = match.end()
    found.append(_Token("end", "", at))
    return found


class _Parser:
    def __init__(self, text: str) -> None:
        self._tokens = _tokens(text)
        self._next = 0
        self._depth = 0

    def whole(self) -> Node:
        found = self._expression()
        self._expect("")
        return found

    def _expression(self) -> Node:
        self._depth += 1
        if self._depth > _DEEPEST:
            raise CelError(f"the expression is nested deeper than {_DEEPEST}")
        condition = self._binary(("||",), self._and)
        if self._take("?"):
            then = self._expression()
            self._expect(":")
            condition = Call("?", (condition, then, self._expression()))
        self._depth -= 1
        return condition

    def _and(self) -> Node:
        return self._binary(("&&",), self._relation)

    def _relation(self) -> Node:
        return self._binary(_RELATIONS, self._sum)

    def _sum(self) -> Node:
        return self._binary(("+", "-"), self._product)

    def _product(self) -> Node:
        return self._binary(("*", "/", "%"), self._unary)

    def _binary(self, operators: Sequence[str], operand: Any) -> Node:
        left: Node = operand()
        while (sign := self._take(*operators)) is not None:
            left = Call(sign, (left, operand()))
        return left

    def _unary(self) -> Node:
        signs = []
        while (sign := self._take("!", "-")) is not None:
            signs.append("negative" if sign == "-" else sign)
        found = self._member()
        for sign in reversed(signs):
            found = Call(sign, (found,))
        return found

    def _member(self) -> Node:
        found = self._primary()
        while (sign := self._take(".", ".?", "[", "[?")) is not None:
            if sign in {"[", "[?"}:
                found = Index(found, self._expression(), sign == "[?")
                self._expect("]")
                continue
            name = self._name()
            if sign == "." and self._take("("):
                found = Call(name, (found, *self._listed(")")), method=True)
            else:
                found = Select(found, name, sign == ".?")
        return found

    def _primary(self) -> Node:  # noqa: PLR0911 - one for each way that a value begins
        token = self._tokens[self._next]
        self._next += 1
        match token.kind:
            case "string":
                return Literal(_text(token))
            case "int":
                return Literal(int(token.text, 0 if token.text.startswith("0x") else 10))
            case "float":
                return Literal(float(token.text))
            case "name" if token.text in _WORDS:
                return Literal(_WORDS[token.text])
            case "name" if token.text != "in":
                if self._take("("):
                    return Call(token.text, self._listed(")"))
                return Name(token.text)
        match token.text:
            case "(":
                found = self._expression()
                self._expect(")")
                return found
            case "[":
                return Items(self._listed("]"))
            case "{":
                return Entries(self._entries())
        raise self._unexpected(token)

    def _listed(self, end: str) -> tuple[Node, ...]:
        found: list[Node] = []
        while not self._take(end):
            found.append(self._expression())
            if not self._take(","):
                self._expect(end)
                break
        return tuple(found)

    def _entries(self) -> tuple[tuple[Node, Node], ...]:
        found: list[tuple[Node, Node]] = []
        while not self._take("}"):
            key = self._expression()
            self._expect(":")
            found.append((key, self._expression()))
            if not self._take(","):
                self._expect("}")
                break
        return tuple(found)

    def _name(self) -> str:
        token = self._tokens[self._next]
        if token.kind != "name":
            raise self._unexpected(token)
        self._next += 1
        return token.text

    def _take(self, *texts: str) -> str | None:
        token = self._tokens[self._next]
        if token.text in texts and token.kind in {"operator", "name"}:
            self._next += 1
            return token.text
        return None

    def _expect(self, text: str) -> None:
        token = self._tokens[self._next]
        if token.text != text or token.kind == "string":
            raise self._unexpected(token)
        self._next += 1

    def _unexpected(self, token: _Token) -> CelError:
        return CelError(f"syntax error at character {token.at}: {token.text or 'end'!r}")


def _text(token: _Token) -> str:
    try:
        value = ast.literal_eval(token.text)
    except (ValueError, SyntaxError) as error:
        raise CelError(f"syntax error at character {token.at}: {error}") from None
    return str(value)
