"""Text values: Go's booleans, integers and durations, comma lists, product names.

HAMi and vendors' plugins write with Go's strconv and time packages. Reading more or less strictly
than Go would make two readers of one annotation disagree.

In a comma list of a user (`H100, A100-SXM4,,`), spaces around a word and empty words are ignored,
as in HAMi: a trailing comma is no word that matches all or nothing.

Users write part of a product name (`A100`, `h20`), cards have the whole (`NVIDIA A100-SXM4-40GB`).
HAMi takes any substring, so that a pod that asks for an H20 also gets an H200. Here a number is
never cut: where a word begins or ends with a digit, so must the product's number. The rules are in
docs/placement.md, "Type tokens".
"""

from __future__ import annotations

import re
from fractions import Fraction

from hami.wire import errors

INT32_MAX = 2**31 - 1

_TRUE = frozenset(("1", "t", "T", "TRUE", "true", "True"))
_DIGITS = frozenset("0123456789")
_FALSE = frozenset(("0", "f", "F", "FALSE", "false", "False"))
_INTEGER = re.compile(r"[+-]?[0-9]{1,32}", re.ASCII)
_DURATION_PART = re.compile(r"([0-9]*)(?:\.([0-9]*))?(ns|us|µs|μs|ms|s|m|h)", re.ASCII)
_LONGEST_DURATION = 128  # bounds the arithmetic; Go itself never writes more than 25 characters
_UNIT_SECONDS = {
    "ns": Fraction(1, 10**9),
    "us": Fraction(1, 10**6),
    "µs": Fraction(1, 10**6),
    "μs": Fraction(1, 10**6),
    "ms": Fraction(1, 1000),
    "s": Fraction(1),
    "m": Fraction(60),
    "h": Fraction(3600),
}


def parse_bool(text: str, *, what: str) -> bool:
    """Read a boolean as strconv.ParseBool does."""
    if text in _TRUE:
        return True
    if text in _FALSE:
        return False
    raise errors.WireError(what, text, "is not a boolean", "write true or false")


def parse_int32(text: str, *, what: str) -> int:
    """Read a decimal integer of 32 bits as strconv.ParseInt does."""
    if not _INTEGER.fullmatch(text):
        raise errors.WireError(what, text, "is not a whole number")
    value = int(text)
    if not -INT32_MAX - 1 <= value <= INT32_MAX:
        raise errors.WireError(what, text, f"is outside 32 bits, at most {INT32_MAX}")
    return value


def amount(value: int, *, what: str) -> int:
    """Return `value` if it is an amount on the wire: not negative, at most 32 bits with sign."""
    if value < 0:
        raise errors.WireError(what, value, "is negative")
    if value > INT32_MAX:
        raise errors.WireError(what, value, f"is outside 32 bits, at most {INT32_MAX}")
    return value


def parse_duration(text: str, *, what: str) -> float:
    """Read a duration such as `5m`, `28s` or `1h30m`, in seconds."""
    if len(text) > _LONGEST_DURATION:
        raise errors.WireError(what, text, f"is longer than {_LONGEST_DURATION} characters")
    unsigned = text[1:] if text[:1] in ("+", "-") else text
    if unsigned == "0":
        return 0.0
    total, position = Fraction(0), 0
    while position < len(unsigned):
        part = _DURATION_PART.match(unsigned, position)
        if part is None or not (part[1] or part[2]):
            break
        fraction = Fraction(int(part[2]), 10 ** len(part[2])) if part[2] else Fraction(0)
        total += (int(part[1] or 0) + fraction) * _UNIT_SECONDS[part[3]]
        position = part.end()
    if not unsigned or position != len(unsigned) or total * 10**9 >= 2**63:
        raise errors.WireError(what, text, "is not a duration", "write for example 5m or 1h30m")
    return -float(total) if text[0] == "-" else float(total)


def comma_list(value: str) -> tuple[str, ...]:
    """Return the words of a comma list, trimmed, without the empty ones."""
    return tuple(word for word in map(str.strip, value.split(",")) if word)


def matches_product(token: str, product: str) -> bool:
    """Return True if `token` is in `product`, ignoring case, without cutting a number.

    The work is bounded: a product has at most 256 characters (`hami.wire.node_register`), and a
    token that is longer than the product is not searched for.
    """
    product = product.lower()
    if not token or len(token) > len(product):
        return False
    token = token.lower()
    digit_first, digit_last = token[0] in _DIGITS, token[-1] in _DIGITS
    start = product.find(token)
    while start >= 0:
        end = start + len(token)
        cut_before = digit_first and start > 0 and product[start - 1] in _DIGITS
        cut_after = digit_last and end < len(product) and product[end] in _DIGITS
        if not (cut_before or cut_after):
            return True
        start = product.find(token, start + 1)
    return False
