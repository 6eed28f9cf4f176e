"""Text of a flag or variable, or a value of the file, to what a setting holds.

All three sources go through one function, so that a value means the same wherever it stands.
"""

from __future__ import annotations

import math

from hami.cli import errors
from hami.cli.flag_table import Flag, Kind
from hami.vendors import yaml_text
from hami.wire import errors as wire_errors
from hami.wire import go_values

Value = str | bool | int | float

_SECONDS_IN = (("h", 3600), ("m", 60))


def read(flag: Flag, given: object, *, origin: str) -> Value:
    """Return the value of a setting; `origin` names in errors where it was given."""
    match flag.kind:
        case Kind.TEXT:
            return _text(given, origin)
        case Kind.SWITCH:
            return _switch(given, origin)
        case Kind.WHOLE:
            number = _number(given)
            if number is None or number != math.floor(number):
                raise errors.usage(origin, given, "is no whole number", "write for example 100")
            return int(number)
        case Kind.NUMBER:
            number = _number(given)
            if number is None:
                raise errors.usage(origin, given, "is no number", "write for example 50 or 2.5")
            return number
        case Kind.DURATION | Kind.SECONDS:
            return _duration(given, origin, bare=flag.kind is Kind.SECONDS)


def show(flag: Flag) -> str:
    """Return the default as a user would write it."""
    value = flag.default
    if isinstance(value, bool):
        return str(value).lower()
    if flag.kind in (Kind.DURATION, Kind.SECONDS) and isinstance(value, float):
        return duration(value)
    return f"{value:g}" if isinstance(value, float) else str(value)


def duration(seconds: float) -> str:
    """Write a duration in its largest whole unit: 15m, 8s, 1.5s."""
    if seconds != int(seconds):
        return f"{seconds}s"
    for unit, length in _SECONDS_IN:
        if seconds and seconds % length == 0:
            return f"{int(seconds) // length}{unit}"
    return f"{int(seconds)}s"


def _text(given: object, origin: str) -> str:
    if isinstance(given, bool) or not isinstance(given, str | int | float):
        raise errors.usage(origin, given, "is no text", "put it in quotes")
    return str(given).strip()


def _switch(given: object, origin: str) -> bool:
    if isinstance(given, bool):
        return given
    try:
        return go_values.parse_bool(str(given).strip(), what=origin)
    except wire_errors.WireError as error:
        raise errors.UsageError(str(error)) from error


def _number(given: object) -> float | None:
    # Python reads more as a number than a user means: 1_000, nan, infinity.
    if isinstance(given, str) and yaml_text.NUMBER.fullmatch(given.strip()):
        return float(given)
    return float(given) if isinstance(given, int | float) and not isinstance(given, bool) else None


def _duration(given: object, origin: str, *, bare: bool) -> float:
    number = _number(given)
    if number is not None and (bare or not number):
        return number
    if number is not None:
        remedy = f"write {duration(number)}, or for example 5m or 1h30m"
        raise errors.usage(origin, given, "has no unit", remedy)
    try:
        return go_values.parse_duration(str(given).strip(), what=origin)
    except wire_errors.WireError as error:
        raise errors.UsageError(str(error)) from error
