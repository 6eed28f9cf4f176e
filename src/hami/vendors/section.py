"""One section of device-config.yaml, read key by key with the rule of each.

Asking is declaring: a key that nobody asked for is unknown, and `unknown()` names it together with
the nearest key that was asked for. Absent and null mean the default. Numbers and switches may be
quoted, because a Helm template renders many values that way (and 1000000 as 1e+06).
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterable

from hami.vendors import errors, yaml_text
from hami.wire import go_values

_LEAST_FACTOR, _MOST_FACTOR = 0.01, 100
_SWITCH = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}


class Section:
    """A mapping of the file, with its place for messages."""

    def __init__(self, data: object, *, source: str, path: str) -> None:
        self._source = source
        self._path = path
        self._asked: list[str] = []
        if data is not None and not isinstance(data, dict):
            raise errors.ConfigError(
                source=source,
                place=path,
                value=data,
                rule="must be a mapping of keys to values",
                remedy=f"write the keys below `{path.rpartition('.')[2]}:`, indented by two spaces",
            )
        self._data: dict[object, object] = data or {}

    def text(self, key: str, default: str) -> str:
        """Return a text; spaces around it do not count."""
        value = self._value(key)
        if value is None:
            return default
        if not isinstance(value, str):
            raise self.error(key, "must be text", "put it in quotes, if that is what is meant")
        return value.strip()

    def word(self, key: str, default: str, *, among: Iterable[str]) -> str:
        """Return one of the allowed words; an empty text means the default."""
        value = self.text(key, default) or default
        words = tuple(among)
        if value not in words:
            raise self.error(key, "is not known", f"write one of {', '.join(words)}")
        return value

    def switch(self, key: str, *, default: bool) -> bool:
        value = self._value(key)
        if value is None:
            return default
        found = _SWITCH.get(value.strip().lower()) if isinstance(value, str) else value
        if not isinstance(found, bool):
            raise self.error(key, "must be true or false", "write true or false")
        return found

    def whole(
        self, key: str, default: int, *, low: int = 0, high: int = go_values.INT32_MAX
    ) -> int:
        value = self._value(key)
        if value is None:
            return default
        number = _number(value)
        if number is None or number != math.floor(number) or not low <= number <= high:
            raise self.error(
                key,
                f"must be a whole number from {low} to {high}",
                f"write one, or remove the key for the default {default}",
            )
        return int(number)

    def factor(self, key: str, default: float) -> float:
        """Return a scaling factor; the bounds keep a slip of the pen from being believed."""
        value = self._value(key)
        if value is None:
            return default
        number = _number(value)
        if number is None or not _LEAST_FACTOR <= number <= _MOST_FACTOR:
            raise self.error(
                key,
                f"must be a number from {_LEAST_FACTOR} to {_MOST_FACTOR}",
                "write 1 for no scaling, 1.5 for half more",
            )
        return float(number)

    def texts(self, key: str) -> tuple[str, ...]:
        """Return a list of at least one text, none of them empty."""
        value = self._value(key)
        items = value if isinstance(value, list) else []
        if not items or not all(isinstance(item, str) and item.strip() for item in items):
            raise self.error(
                key,
                "must be a list of at least one text, none of them empty",
                "write one per line, each after `- `",
            )
        return tuple(item.strip() for item in items)

    def sections(self, key: str) -> tuple[Section, ...]:
        """Return a list of mappings; absent is an empty one."""
        value = self._value(key)
        if value is None:
            return ()
        if not isinstance(value, list):
            raise self.error(key, "must be a list", "write one entry per `- `")
        return tuple(
            Section(item, source=self._source, path=f"{self._path}.{key}[{place}]")
            for place, item in enumerate(value)
        )

    def error(self, key: str, rule: str, remedy: str) -> errors.ConfigError:
        """Build the error about what stands at `key`."""
        return errors.ConfigError(
            source=self._source,
            place=f"{self._path}.{key}",
            value=self._data.get(key),
            rule=rule,
            remedy=remedy,
        )

    def is_silent(self) -> bool:
        """Whether no key that was asked for holds a value."""
        return all(self._data.get(key) in (None, [], {}) for key in self._asked)

    def unknown(self) -> list[str]:
        """Return a warning for each key that nobody asked for."""
        return [
            f"{self._source}: {self._path}.{key}: no such key, ignored{nearest(key, self._asked)}"
            for key in self._data
            if key not in self._asked
        ]

    def _value(self, key: str) -> object:
        self._asked.append(key)
        return self._data.get(key)


def nearest(name: object, known: Iterable[str]) -> str:
    """Return "; did you mean …?" with the most similar known name, or nothing."""
    by_case = {candidate.lower(): candidate for candidate in known}
    found = difflib.get_close_matches(str(name)[:100].lower(), by_case, n=1)
    return f"; did you mean {by_case[found[0]]}?" if found else ""


def _number(value: object) -> float | None:
    """Read a number, quoted or not; None where there is none."""
    if isinstance(value, str) and yaml_text.NUMBER.fullmatch(value.strip()):
        value = float(value)
    return value if isinstance(value, int | float) and not isinstance(value, bool) else None
