"""Strict YAML of the user's configuration files, section by section.

The reader of an error is a person with an editor open: the message names the file, the place in it,
the value there, the rule that it breaks and what to write instead.

PyYAML's safe loader takes more than a configuration should: a key written twice (the last one wins
in silence), `010` read as eight and `1:30` as ninety, a date that raises ValueError, aliases that
unfold a few lines into gigabytes. Here a scalar is null, true or false, a decimal number or text;
aliases and tags are refused; whatever the text holds, only `ConfigError` is raised.
"""

from __future__ import annotations

import difflib
import math
import os
import pathlib
import re
from collections.abc import Hashable, Iterable
from typing import Any

import yaml

from hami.wire import errors, quantity, text_values


class ConfigError(ValueError):
    """The configuration breaks a rule; nothing of it is used."""

    def __init__(
        self, *, source: str, place: str, rule: str, remedy: str, value: object = ...
    ) -> None:
        #: The file, as the user named it.
        self.source = source
        #: A key path (`nvidia.defaultMemory`), or line and column; empty: the file as a whole.
        self.place = place
        self.rule = rule
        self.remedy = remedy
        head = f"{source}: {place}" if place else source
        body = rule if value is ... else f"{_as_written(value)} {rule}"
        super().__init__(f"{head}: {body}; {remedy}")


#: Many times the largest real file, and still read within seconds.
MAX_CHARACTERS = 256 * 1024
#: No character has more than four bytes.
_BYTES_PER_CHARACTER = 4
_CORRECT = "correct that line (indent with spaces, quote text with : or # in it)"
_LEAST_FACTOR, _MOST_FACTOR = 0.01, 100
_OBJECT_NAME = re.compile(r"[a-z0-9]([-.a-z0-9]{0,251}[a-z0-9])?")
_SWITCH = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}


def read(path: str | os.PathLike[str], *, remedy: str, longest: int = MAX_CHARACTERS) -> str:
    """Read a file as text; a longer one is cut to a little more than `longest` characters."""
    source = os.fspath(path)
    most = _BYTES_PER_CHARACTER * longest
    try:
        with pathlib.Path(path).open("rb") as file:
            data = file.read(most + 1)
        # A cut text may end within a character; it is refused for its length.
        return data.decode("utf-8", "replace" if len(data) > most else "strict")
    except OSError as error:
        raise ConfigError(
            source=source,
            place="",
            rule=f"the file cannot be read: {error.strerror or error}",
            remedy=remedy,
        ) from error
    except UnicodeDecodeError as error:
        raise ConfigError(
            source=source,
            place=f"byte {error.start + 1}",
            rule="the file is not UTF-8 text",
            remedy="save it as UTF-8",
        ) from error


def load(text: str, *, source: str) -> object:
    """Return the document's data; None for an empty one."""
    if len(text) > MAX_CHARACTERS:
        raise ConfigError(
            source=source,
            place="",
            rule=f"the file has more than {MAX_CHARACTERS} characters",
            remedy="is this the right file? A device-config.yaml needs a few thousand",
        )
    try:
        # Not yaml.safe_load's loader, but a stricter child of it.
        data: object = yaml.load(text, Loader=_Loader)  # noqa: S506 - a safe one
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        problem = ", ".join(part for part in (error.context, error.problem) if part)
        rule, remedy = f"not valid YAML: {problem}", _CORRECT
        if isinstance(error, _Refused):
            rule, remedy = str(error.problem), error.remedy
        raise ConfigError(
            source=source,
            place=f"line {mark.line + 1}, column {mark.column + 1}" if mark else "",
            rule=rule,
            remedy=remedy,
        ) from error
    except yaml.reader.ReaderError as error:
        raise ConfigError(
            source=source,
            place=_place_of(text, error.position),
            rule=f"the character {chr(int(error.character))!r} is not allowed in YAML",
            remedy="remove it",
        ) from error
    except RecursionError as error:
        raise ConfigError(
            source=source,
            place="",
            rule="the values are nested too deeply",
            remedy="no setting needs more than a handful of levels",
        ) from error
    return data


class Section:
    """A mapping of the file, read key by key with the rule of each.

    Asking is declaring: a key that was not asked for is unknown, and `refuse_unknown()` names it
    together with the nearest key that was. Absent and null mean the default. Numbers and switches
    may be quoted, because a Helm template renders many values that way (and 1000000 as 1e+06).
    """

    def __init__(self, data: object, *, source: str, path: str) -> None:
        self._source = source
        self._path = path
        self._asked: list[str] = []
        if data is not None and not isinstance(data, dict):
            raise ConfigError(
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
        self, key: str, default: int, *, low: int = 0, high: int = text_values.INT32_MAX
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
        """Return a scaling factor; the bounds catch a value with a digit too many."""
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

    def resource(self, key: str, default: str) -> str:
        """Return a name of an extended resource; an empty one means that there is none."""
        name = self.text(key, default)
        if not name:
            return ""
        try:
            return quantity.check_resource_name(name, what=key)
        except errors.WireError as error:
            remedy = error.remedy or f"write a name like {default or 'vendor.com/card'}"
            raise self.error(key, error.rule, remedy) from error

    def object_name(self, key: str) -> str:
        """Return a name of a Kubernetes object, or an empty text."""
        name = self.text(key, "")
        if name and not _OBJECT_NAME.fullmatch(name):
            raise self.error(
                key,
                "is not a name of a Kubernetes object",
                "write small letters, digits, - and . only, or leave it empty",
            )
        return name

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

    def wholes(self, key: str, *, high: int) -> tuple[int, ...]:
        """Return a list of whole numbers from 0; absent is an empty one."""
        value = self._value(key)
        items = value if isinstance(value, list) else [value]
        numbers = [_number(item) for item in items if value is not None]
        if any(each is None or each not in range(high + 1) for each in numbers):
            raise self.error(
                key, f"must be a list of whole numbers from 0 to {high}", "write for example [0]"
            )
        return tuple(int(each) for each in numbers if each is not None)

    def sections(self, key: str, *, nested: bool = False) -> tuple[Section, ...]:
        """Return a list of mappings, or of lists of them if `nested`; absent is an empty one."""
        return tuple(
            Section(item, source=self._source, path=place)
            for place, item in self._items(self._value(key), self.place(key), nested=nested)
        )

    def _items(self, value: object, path: str, *, nested: bool) -> list[tuple[str, object]]:
        if value is None:
            return []
        if not isinstance(value, list):
            raise ConfigError(
                source=self._source,
                place=path,
                value=value,
                rule="must be a list",
                remedy="write one entry per `- `",
            )
        items = [(f"{path}[{place}]", item) for place, item in enumerate(value)]
        if not nested:
            return items
        return [each for at, item in items for each in self._items(item, at, nested=False)]

    def place(self, key: object) -> str:
        """Return the key's path in the file."""
        return f"{self._path}.{key}" if self._path else str(key)

    def error(self, key: str, rule: str, remedy: str) -> ConfigError:
        """Build the error about the value at `key`."""
        return ConfigError(
            source=self._source,
            place=self.place(key),
            value=self._data.get(key),
            rule=rule,
            remedy=remedy,
        )

    def is_silent(self) -> bool:
        """Whether no key that was asked for holds a value."""
        return all(self._data.get(key) in (None, [], {}) for key in self._asked)

    def has(self, key: str) -> bool:
        """Whether the key holds a value; null is none."""
        return self._data.get(key) is not None

    def refuse_unknown(self) -> None:
        """Raise the error about the first key that was not asked for."""
        for key in self._data:
            if key not in self._asked:
                raise ConfigError(
                    source=self._source,
                    place=self.place(key),
                    rule=f"no such key{nearest(key, self._asked)}",
                    remedy="correct its name, or remove it; a key that is absent has its default",
                )

    def _value(self, key: str) -> object:
        self._asked.append(key)
        return self._data.get(key)


def nearest(name: object, known: Iterable[str]) -> str:
    """Return "; did you mean …?" with the most similar known name, or nothing."""
    by_case = {candidate.lower(): candidate for candidate in known}
    found = difflib.get_close_matches(str(name)[:100].lower(), by_case, n=1)
    return f"; did you mean {by_case[found[0]]}?" if found else ""


# So many digits and no more: then no number is infinite, and a longer one is quoted as written.
_DECIMAL = (
    r"[-+]?(?:(?:0|[1-9][0-9]{0,17})(?:\.[0-9]{0,18})?|\.[0-9]{1,18})(?:[eE][-+]?[0-9]{1,2})?"
)
#: A number, also within quotes: no octal, no underscores, no infinity.
NUMBER = re.compile(_DECIMAL)


def _number(value: object) -> float | None:
    """Read a number, quoted or not; None where there is none."""
    if isinstance(value, str) and NUMBER.fullmatch(value.strip()):
        value = float(value)
    return value if isinstance(value, int | float) and not isinstance(value, bool) else None


def _as_written(value: object) -> str:
    """Quote a value as YAML spells it rather than as Python does."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    return errors.shorten(value)


def _place_of(text: str, position: int) -> str:
    before = text[:position]
    return f"line {before.count(chr(10)) + 1}, column {position - before.rfind(chr(10))}"


_TAG = "tag:yaml.org,2002:"


class _Refused(yaml.MarkedYAMLError):
    """Valid YAML that a configuration must not use."""

    def __init__(self, problem: str, at: yaml.Event | yaml.Node, remedy: str) -> None:
        mark: Any = at.start_mark  # the stubs name a second Mark, of the C loader
        super().__init__(problem=problem, problem_mark=mark)
        self.remedy = remedy


class _Loader(yaml.SafeLoader):
    # Defined here, so that add_implicit_resolver fills this class and starts from nothing.
    yaml_implicit_resolvers = {}  # noqa: RUF012 - PyYAML's own way of declaring it

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        event: yaml.Event = self.peek_event()  # type: ignore[no-untyped-call] # a gap in the stubs
        if isinstance(event, yaml.AliasEvent):
            raise _Refused("an alias (*name) is not allowed here", event, "write the value out")
        if getattr(event, "tag", None) is not None:
            raise _Refused("a tag (!name) is not allowed here", event, "write the plain value")
        return super().compose_node(parent, index)

    def construct_mapping(
        self,
        node: yaml.MappingNode,
        deep: bool = False,  # noqa: FBT001, FBT002 - PyYAML's signature
    ) -> dict[Hashable, object]:
        seen: set[str] = set()
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode):
                raise _Refused("this key is not a plain word", key, "write one")
            if key.value in seen:
                raise _Refused(f"key {key.value!r} is written twice", key, "keep one of them")
            seen.add(key.value)
        return super().construct_mapping(node, deep)


for _kind, _pattern, _first in (
    ("null", r"~|null|Null|NULL|", [*"~nN", ""]),
    ("bool", r"true|True|TRUE|false|False|FALSE", [*"tTfF"]),
    ("int", r"[-+]?(?:0|[1-9][0-9]{0,17})", [*"-+0123456789"]),
    ("float", _DECIMAL, [*"-+.0123456789"]),
):
    _Loader.add_implicit_resolver(_TAG + _kind, re.compile(f"(?:{_pattern})$"), _first)
