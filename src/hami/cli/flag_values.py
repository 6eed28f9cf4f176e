"""The table of flags, and how their values are read.

Each setting of a process is one row: flag, variable, key of the file, meaning. Rows are made from
the fields of the process's settings, plus HAMi's spellings and variables that others set (here) and
the help (beside each command, as in `hami.cli.scheduler`).

All three sources go through `read`, so a value means the same in each.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Generic, TypeVar

import msgspec

from hami.cli import errors
from hami.vendors import config_file
from hami.wire import errors as wire_errors
from hami.wire import text_values


class Kind(enum.Enum):
    """The kind of a value, as the help shows it."""

    TEXT = "TEXT"
    SWITCH = "true|false"
    WHOLE = "NUMBER"
    NUMBER = "AMOUNT"
    #: In seconds once read; written as Go does.
    DURATION = "DURATION"
    #: A duration that may also be a bare number of seconds, as HAMi takes it.
    SECONDS = "SECONDS"


class Flag(msgspec.Struct, frozen=True):
    """One setting, and the names under which it can be given."""

    field: str
    group: str
    help: str
    kind: Kind
    default: str | bool | int | float
    #: As HAMi writes it, without leading dashes.
    spelling: str
    #: The first one that is set counts.
    environment: tuple[str, ...]

    @property
    def key(self) -> str:
        """The name with `-` throughout: in the file, and to compare by."""
        return self.field.replace("_", "-")


Source = Iterator[tuple[Flag, str, object]]
"""The settings of a source: flag, its name in errors, the value as given."""

#: HAMi writes these with underscores.
_UNDERSCORED = frozenset(("http_bind", "cert_file", "key_file"))

_KINDS = {"kube_qps": Kind.NUMBER, "kube_timeout": Kind.SECONDS}
_KIND_OF = {"str": Kind.TEXT, "bool": Kind.SWITCH, "int": Kind.WHOLE, "float": Kind.DURATION}

#: Variables that HAMi reads, or that are set for other reasons, too.
_MORE_ENVIRONMENT = {
    "disable_health_checks": "DP_DISABLE_HEALTHCHECKS",
    "enable_health_checks": "DP_ENABLE_HEALTHCHECKS",
    "kubeconfig": "KUBECONFIG",
    "mig_strategy": "MIG_STRATEGY",
    "node_name": "NODE_NAME",
    "node_lock_timeout": "HAMI_NODELOCK_EXPIRE",
    "pod_name": "POD_NAME",
    "pod_namespace": "POD_NAMESPACE",
}

S = TypeVar("S", bound=msgspec.Struct)
S_contra = TypeVar("S_contra", bound=msgspec.Struct, contravariant=True)

Failure = Callable[[str, str, str], errors.UsageError]
"""Builds the error about a field from its rule and remedy."""

Check = Callable[[S_contra, Failure], None]
"""Raises the error of the first rule broken."""


class Table(Generic[S]):
    """All flags of one command, with its description and its rules."""

    def __init__(
        self,
        settings: type[S],
        *,
        description: str,
        help: Mapping[str, Mapping[str, str]],  # noqa: A002 - what it is everywhere else
        checks: Sequence[Check[S]],
    ) -> None:
        self.settings = settings
        #: {prog} is replaced by the command as it was called.
        self.description = description
        #: Rules, checked in this order.
        self.checks = checks
        fields = {field.name: field for field in msgspec.structs.fields(settings)}
        rows = (
            _row(fields[name], group=group, text=text)
            for group, texts in help.items()
            for name, text in texts.items()
        )
        #: By key, in the order of the help.
        self.flags: Mapping[str, Flag] = {row.key: row for row in rows}


def _row(field: msgspec.structs.FieldInfo, *, group: str, text: str) -> Flag:
    name = field.name
    more = _MORE_ENVIRONMENT.get(name)
    return Flag(
        field=name,
        group=group,
        help=text,
        kind=_KINDS.get(name) or _KIND_OF[field.type.__name__],
        default=field.default,
        spelling=name if name in _UNDERSCORED else name.replace("_", "-"),
        environment=(f"HAMI_{name.upper()}", *((more,) if more else ())),
    )


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
        return text_values.parse_bool(str(given).strip(), what=origin)
    except wire_errors.WireError as error:
        raise errors.UsageError(str(error)) from error


def _number(given: object) -> float | None:
    # Python reads more as a number than a user means: 1_000, nan, infinity.
    if isinstance(given, str) and config_file.NUMBER.fullmatch(given.strip()):
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
        return text_values.parse_duration(str(given).strip(), what=origin)
    except wire_errors.WireError as error:
        raise errors.UsageError(str(error)) from error
