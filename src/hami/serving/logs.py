"""Logs: one JSON object a line, on the standard library's logging.

Every line carries the id of the request that caused it, and the trace if there is one; code that
logs need not pass either. Fields come through `extra`; a value that JSON cannot hold becomes its
repr. Callers must not log secrets.
"""

from __future__ import annotations

import datetime as dt
import logging
import sys
import time
from collections.abc import Callable, Hashable, Mapping
from typing import Any, Literal, TextIO

from hami.serving import lifetime, tracing
from hami.wire import codec, correlation
from hami.wire import errors as wire_errors

Format = Literal["json", "text"]

#: Attributes of every record; all others came through `extra`.
_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}
#: Fields of a line whose names `extra` cannot use.
_OURS = frozenset({"time", "level", "logger", "message", "id", "trace", "exception"})


def set_up(*, level: str, stream: TextIO = sys.stderr, format: Format = "json") -> None:  # noqa: A002 - the flag's name
    """Write all records at or above a level to a stream, and nowhere else."""
    number = logging.getLevelNamesMapping().get(level.upper())
    if number is None:
        raise lifetime.ServingError(f"log level {level!r} is unknown; write debug, info or warning")
    handler = logging.StreamHandler(stream)
    handler.setFormatter(JsonFormatter() if format == "json" else TextFormatter())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(number)


class JsonFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        line = {**_head(record), **_extras(record)}
        exception = _exception(self, record)
        if exception:
            line["exception"] = exception
        try:
            return codec.encode(line).decode()
        except (wire_errors.WireError, TypeError):
            return codec.encode({key: _plain(value) for key, value in line.items()}).decode()


class TextFormatter(logging.Formatter):
    """The same as text: time, level, message, then the fields; line breaks are escaped."""

    def format(self, record: logging.LogRecord) -> str:
        head = _head(record)
        lead = (
            f"{head.pop('time')} {head.pop('level')} {head.pop('logger')} {head.pop('message')!s}"
        )
        fields = {**_extras(record), **head}
        shown = [lead, *(f"{key}={_plain(value)}" for key, value in fields.items())]
        line = " ".join(shown).replace("\r", "\\r").replace("\n", "\\n")
        exception = _exception(self, record)
        return f"{line}\n{exception}" if exception else line


def _head(record: logging.LogRecord) -> dict[str, Any]:
    when = dt.datetime.fromtimestamp(record.created, dt.UTC)
    head: dict[str, Any] = {
        "time": when.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
        "level": record.levelname.lower(),
        "logger": record.name,
        "message": _message(record),
    }
    if current := correlation.current():
        head["id"] = current
    if trace := tracing.current_trace():
        head["trace"] = trace
    return head


def _extras(record: logging.LogRecord) -> dict[str, Any]:
    return {
        f"{key}_" if key in _OURS else key: value
        for key, value in vars(record).items()
        if key not in _STANDARD
    }


def _message(record: logging.LogRecord) -> str:
    try:
        return record.getMessage()
    # A wrong placeholder in a library must not cost the line.
    except Exception:  # noqa: BLE001 - whatever it is
        return f"{record.msg!s} {_repr(record.args)}"


def _exception(formatter: logging.Formatter, record: logging.LogRecord) -> str:
    if record.exc_info and record.exc_info[0] is not None:
        return formatter.formatException(record.exc_info)
    return record.exc_text or ""


def _plain(value: object) -> object:
    """Return a value that can always be written."""
    if value is None or isinstance(value, bool | float):
        return value
    if isinstance(value, int) and abs(value) < 2**63:
        return value
    text = value if isinstance(value, str) else _repr(value)
    return text.encode("utf-8", "backslashreplace").decode()


def _repr(value: object) -> str:
    try:
        return repr(value)
    # A broken __repr__ of anything at all.
    except Exception:  # noqa: BLE001 - whatever it is
        return f"<{type(value).__name__} without a repr>"


class Seldom:
    """Logs the same message at most once per interval (seconds), with a count of those left out."""

    def __init__(
        self, interval: float, *, clock: Callable[[], float] = time.monotonic, most_keys: int = 1000
    ) -> None:
        self._interval = interval
        self._clock = clock
        self._most_keys = most_keys
        #: Key -> time of its last line, and how many were left out since; the oldest first.
        self._logged: dict[Hashable, tuple[float, int]] = {}

    def due(self, key: Hashable = "") -> int | None:
        """Return how many were left out since the last line; None: too early for another."""
        now = self._clock()
        last, left_out = self._logged.get(key, (-float("inf"), 0))
        if now - last < self._interval:
            self._logged[key] = (last, left_out + 1)
            return None
        self._logged.pop(key, None)
        self._logged[key] = (now, 0)
        if len(self._logged) > self._most_keys:
            del self._logged[next(iter(self._logged))]
        return left_out

    def log(
        self,
        logger: logging.Logger,
        level: int,
        message: str,
        *,
        key: Hashable = "",
        extra: Mapping[str, object] | None = None,
    ) -> None:
        """Log unless this message with this key was logged within the interval."""
        left_out = self.due((message, key))
        if left_out is not None:
            fields = {**(extra or {}), **({"left_out": left_out} if left_out else {})}
            logger.log(level, message, extra=fields, stacklevel=2)
