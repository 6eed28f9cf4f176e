"""Evaluate CEL expressions over JSON, as far as webhook conditions use them.

Implemented: literals, lists, maps, fields, indexes, optionals (`.?`, `[?]`, `orValue`, `hasValue`),
all operators, `has`, `size`, `string`, `int`, `double`, `dyn`, the macros `all`, `exists`,
`exists_one`, `filter`, `map`, and of strings `startsWith`, `endsWith`, `contains`, `matches`,
`lowerAscii`, `upperAscii`, `split`, `join`, `trim`, `replace`. Types are found at run time only,
and there are no durations, timestamps, bytes or libraries of Kubernetes (`authorizer`, `quantity`).
"""

from __future__ import annotations

import functools
import itertools
import operator
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from hami_sandbox.apiserver.auth.cel_syntax import (
    Call,
    CelError,
    Entries,
    Index,
    Items,
    Literal,
    Name,
    Node,
    Select,
    parse,
)

__all__ = ["CelError", "Program", "check", "compiled"]

_MACROS = frozenset({"all", "exists", "exists_one", "filter", "map"})
_Variables = Mapping[str, Any]


class _Optional:
    """A value that may be missing."""

    def __init__(self, *value: Any) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Optional) and _equal(self.value, other.value)

    __hash__ = None  # type: ignore[assignment] # nothing is kept by it


class Program:
    """An expression that has been read."""

    def __init__(self, text: str, names: frozenset[str] | None = None) -> None:
        self.text = text
        try:
            self._tree = parse(text)
            _check(self._tree, names)
        except RecursionError:
            raise CelError("the expression is nested too deep") from None

    def __call__(self, **variables: Any) -> Any:
        """Return the value; CelError if it has none."""
        try:
            return _value(self._tree, variables)
        except RecursionError:
            raise CelError("the expression is nested too deep") from None


@functools.lru_cache(maxsize=256)
def compiled(text: str) -> Program:
    return Program(text)


def check(text: str, *names: str) -> None:
    """Raise CelError for an expression that cannot be evaluated with these variables."""
    Program(text, frozenset(names))


def _check(node: Node, names: frozenset[str] | None) -> None:
    """Refuse unknown functions and variables before anything is evaluated."""
    parts: Iterable[Node] = ()
    match node:
        case Name(name) if names is not None and name not in names:
            raise CelError(f"undeclared reference to '{name}'")
        case Call(function, arguments):
            if function not in _LAZY.keys() | _FUNCTIONS.keys() | _MACROS:
                raise CelError(f"undeclared reference to '{function}'")
            parts = arguments
            if _is_macro(function, arguments) and isinstance(arguments[1], Name):
                _check(arguments[0], names)
                names = names if names is None else names | {arguments[1].name}
                parts = arguments[2:]
        case Select(of):
            parts = (of,)
        case Index(of, key):
            parts = (of, key)
        case Items(items):
            parts = items
        case Entries(entries):
            parts = itertools.chain.from_iterable(entries)
    for part in parts:
        _check(part, names)


def _is_macro(function: str, arguments: tuple[Node, ...]) -> bool:
    return function in _MACROS and len(arguments) > 1 and isinstance(arguments[1], Name)


def _value(node: Node, variables: _Variables) -> Any:  # noqa: PLR0911 - one for each kind of node
    match node:
        case Literal(value):
            return value
        case Name(name):
            if name not in variables:
                raise CelError(f"undeclared reference to '{name}'")
            return variables[name]
        case Select(of, field, optional):
            return _picked(_value(of, variables), field, optional=optional)
        case Index(of, key, optional):
            return _picked(_value(of, variables), _value(key, variables), optional=optional)
        case Items(items):
            return [_value(item, variables) for item in items]
        case Entries(entries):
            return {_value(key, variables): _value(value, variables) for key, value in entries}
        case Call(function, arguments):
            return _called(function, arguments, variables)


def _called(function: str, arguments: tuple[Node, ...], variables: _Variables) -> Any:
    if function in _LAZY:
        return _LAZY[function](arguments, variables)
    if _is_macro(function, arguments):
        return _macro(function, arguments, variables)
    known = _FUNCTIONS.get(function)
    if known is None:
        raise CelError(f"'{function}' is not called like this")
    values = [_value(argument, variables) for argument in arguments]
    try:
        return known(*values)
    except (TypeError, AttributeError, ValueError, ZeroDivisionError, re.error) as error:
        raise CelError(f"no such overload: {function}: {error}") from None


def _picked(of: Any, key: Any, *, optional: bool) -> Any:
    if isinstance(of, _Optional):
        # What is taken out of an optional is an optional, whichever way it is written.
        return _picked(of.value[0], key, optional=True) if of.value else of
    if isinstance(of, dict):
        try:
            if key in of:
                return _Optional(of[key]) if optional else of[key]
        except TypeError:
            raise CelError("no such overload: a map's key is a text or a number") from None
    elif isinstance(of, list):
        if isinstance(key, int) and not isinstance(key, bool) and 0 <= key < len(of):
            return _Optional(of[key]) if optional else of[key]
        if not optional:
            raise CelError(f"index out of bounds: {key}")
    elif not (optional and of is None):
        raise CelError(f"no such overload: {key!r} of {_kind(of)}")
    if optional:
        return _Optional()
    raise CelError(f"no such key: {key}")


def _kind(value: Any) -> str:
    names = {dict: "map", list: "list", str: "string", type(None): "null", _Optional: "optional"}
    return names.get(type(value), type(value).__name__)


# What does not evaluate all its arguments.


def _has(arguments: tuple[Node, ...], variables: _Variables) -> bool:
    match arguments:
        case (Select(of, field),):
            found = _picked(_value(of, variables), field, optional=True)
            return bool(found.value)
    raise CelError("has() takes one field, as in has(object.spec)")


def _decisive(*, wanted: bool) -> Callable[[tuple[Node, ...], _Variables], bool]:
    """Return && (false decides) or || (true decides): what decides beats an error on any side."""

    def evaluate(arguments: tuple[Node, ...], variables: _Variables) -> bool:
        return _first((_attempt(each, variables) for each in arguments), wanted=wanted)

    return evaluate


def _first(values: Iterator[Any], *, wanted: bool) -> bool:
    failed: CelError | None = None
    for value in values:
        if isinstance(value, CelError):
            failed = failed or value
        elif not isinstance(value, bool):
            failed = failed or CelError(f"no such overload: {_kind(value)} is no bool")
        elif value is wanted:
            return wanted
    if failed is not None:
        raise failed
    return not wanted


def _attempt(node: Node, variables: _Variables) -> Any:
    try:
        return _value(node, variables)
    except CelError as error:
        return error


def _choice(arguments: tuple[Node, ...], variables: _Variables) -> Any:
    condition, then, otherwise = arguments
    return _value(then if _truth(_value(condition, variables)) else otherwise, variables)


def _truth(value: Any) -> bool:
    if not isinstance(value, bool):
        raise CelError(f"no such overload: {_kind(value)} is no bool")
    return value


_LAZY: dict[str, Callable[[tuple[Node, ...], _Variables], Any]] = {
    "has": _has,
    "&&": _decisive(wanted=False),
    "||": _decisive(wanted=True),
    "?": _choice,
}


def _macro(function: str, arguments: tuple[Node, ...], variables: _Variables) -> Any:
    target, name, *bodies = arguments
    assert isinstance(name, Name)
    over = _value(target, variables)
    if not isinstance(over, list | dict) or not bodies:
        raise CelError(f"no such overload: {function} of {_kind(over)}")
    scopes = [{**variables, name.name: each} for each in over]
    body = bodies[0]
    match function:
        case "all":
            return _first((_attempt(body, scope) for scope in scopes), wanted=False)
        case "exists":
            return _first((_attempt(body, scope) for scope in scopes), wanted=True)
        case "exists_one":
            return sum(_truth(_value(body, scope)) for scope in scopes) == 1
        case "filter":
            return [scope[name.name] for scope in scopes if _truth(_value(body, scope))]
    if len(bodies) > 1:
        scopes = [scope for scope in scopes if _truth(_value(body, scope))]
    return [_value(bodies[-1], scope) for scope in scopes]


# Plain functions.


def _equal(left: Any, right: Any) -> bool:
    """Compare as CEL does: 1 equals 1.0, and true equals no number."""
    if isinstance(left, bool) or isinstance(right, bool):
        return left is right
    if isinstance(left, list | tuple) and isinstance(right, list | tuple):
        return len(left) == len(right) and all(map(_equal, left, right))
    if isinstance(left, dict) and isinstance(right, dict):
        return left.keys() == right.keys() and all(_equal(left[key], right[key]) for key in left)
    return bool(left == right)


def _ordered(compare: Callable[[Any, Any], bool]) -> Callable[[Any, Any], bool]:
    def evaluate(left: Any, right: Any) -> bool:
        if isinstance(left, bool) != isinstance(right, bool):
            raise TypeError(f"{_kind(left)} and {_kind(right)}")
        return compare(left, right)

    return evaluate


def _within(value: Any, of: Any) -> bool:
    if isinstance(of, dict):
        return isinstance(value, str | int | float) and value in of
    if isinstance(of, list):
        return any(_equal(value, each) for each in of)
    raise TypeError(f"in {_kind(of)}")


def _sum(left: Any, right: Any) -> Any:
    if type(left) is type(right) and isinstance(left, str | list | int | float):
        return left + right
    raise TypeError(f"{_kind(left)} + {_kind(right)}")


def _quotient(left: Any, right: Any) -> Any:
    if isinstance(left, int) and isinstance(right, int):
        whole = abs(left) // abs(right)
        return whole if (left < 0) == (right < 0) else -whole
    return left / right


def _remainder(left: int, right: int) -> int:
    return left - right * int(_quotient(left, right))


def _size(value: Any) -> int:
    if isinstance(value, str | list | dict):
        return len(value)
    raise TypeError(_kind(value))


def _string(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str | int | float):
        return str(value)
    raise TypeError(_kind(value))


def _or_value(optional: Any, default: Any) -> Any:
    return optional.value[0] if optional.value else default


def _present(optional: Any) -> Any:
    if not optional.value:
        raise ValueError("optional.none() dereference")
    return optional.value[0]


def _joined(parts: list[str], separator: str = "") -> str:
    return separator.join(parts)


def _not(value: Any) -> bool:
    return not _truth(value)


_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "!": _not,
    "negative": operator.neg,
    "==": _equal,
    "!=": lambda left, right: not _equal(left, right),
    "<": _ordered(operator.lt),
    "<=": _ordered(operator.le),
    ">": _ordered(operator.gt),
    ">=": _ordered(operator.ge),
    "in": _within,
    "+": _sum,
    "-": operator.sub,
    "*": operator.mul,
    "/": _quotient,
    "%": _remainder,
    "size": _size,
    "string": _string,
    "int": int,
    "double": float,
    "dyn": lambda value: value,
    "startsWith": str.startswith,
    "endsWith": str.endswith,
    "contains": str.__contains__,
    "matches": lambda text, pattern: re.search(pattern, text) is not None,
    "lowerAscii": str.lower,
    "upperAscii": str.upper,
    "trim": str.strip,
    "replace": str.replace,
    "split": str.split,
    "join": _joined,
    "orValue": _or_value,
    "hasValue": lambda optional: bool(optional.value),
    "value": _present,
}
