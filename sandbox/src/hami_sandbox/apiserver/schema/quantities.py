"""Quantities in the one form that the server gives back, whatever form they were written in."""

from __future__ import annotations

import functools
import re
from fractions import Fraction

from hami.wire import quantity
from hami.wire.errors import WireError

RULE = "quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'"
_BINARY = ("", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei")
_DECIMAL = {-9: "n", -6: "u", -3: "m", 0: "", 3: "k", 6: "M", 9: "G", 12: "T", 15: "P", 18: "E"}
_EXPONENT = re.compile(r"[0-9.][eE][+-]?[0-9]+$")
_LEAST_BINARY = 1024  # smaller amounts are written as decimal numbers
NANO, MILLI = -9, -3


@functools.lru_cache(maxsize=4096)
def canonical(amount: str | float, *, least: int = NANO) -> str:
    """Return the canonical text; `least` is the smallest power of ten, and what is less rounds up.

    Raises ValueError with the words of the API server.
    """
    try:
        value = quantity.parse(amount, what="a quantity")
    except WireError:
        raise ValueError(RULE) from None
    text = str(amount).strip()
    if text.endswith("i") and abs(value) >= _LEAST_BINARY:
        return _binary(value)
    return _decimal(value, least, exponent=_EXPONENT.search(text) is not None)


def whole(amount: str | float) -> bool:
    """Say whether the amount is a whole number."""
    return quantity.parse(amount, what="a quantity").denominator == 1


def _away_from_zero(value: Fraction) -> int:
    size = -(-abs(value.numerator) // value.denominator)
    return -size if value < 0 else size


def _binary(value: Fraction) -> str:
    number, power = _away_from_zero(value), 0
    while number % 1024 == 0 and power < len(_BINARY) - 1:
        number, power = number // 1024, power + 1
    return f"{number}{_BINARY[power]}"


def _decimal(value: Fraction, least: int, *, exponent: bool) -> str:
    number, power = _away_from_zero(value / Fraction(10) ** least), least
    if number == 0:
        return "0"
    while number % 1000 == 0 and (exponent or power < max(_DECIMAL)):
        number, power = number // 1000, power + 3
    if exponent:
        return f"{number}e{power}" if power else str(number)
    return f"{number}{_DECIMAL[power]}"
