"""YAML text to plain data, strictly.

PyYAML's safe loader still takes more than a configuration should: a key written twice (the last
one wins in silence), `010` read as eight and `1:30` as ninety, a date that raises ValueError,
aliases that unfold a few lines into gigabytes. Here a scalar is null, true or false, a decimal
number or text; aliases and tags are refused; whatever the text holds, only `ConfigError` is raised.
"""

from __future__ import annotations

import re
from collections.abc import Hashable
from typing import Any

import yaml

from hami.vendors import errors

#: Many times the largest real file, and still read within seconds.
MAX_CHARACTERS = 256 * 1024

# So many digits and no more: then no number is infinite, and a longer one is shown as it stands.
_DECIMAL = (
    r"[-+]?(?:(?:0|[1-9][0-9]{0,17})(?:\.[0-9]{0,18})?|\.[0-9]{1,18})(?:[eE][-+]?[0-9]{1,2})?"
)
#: What counts as a number, also within quotes: no octal, no underscores, no infinity.
NUMBER = re.compile(_DECIMAL)

_CORRECT = "correct that line (indent with spaces, quote text with : or # in it)"
_TAG = "tag:yaml.org,2002:"


class _Refused(yaml.MarkedYAMLError):
    """Valid YAML that we do not take."""

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
            raise _Refused("an alias (*name) stands here", event, "write the value out")
        if getattr(event, "tag", None) is not None:
            raise _Refused("a tag (!name) stands here", event, "write the plain value")
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
                raise _Refused(f"key {key.value!r} stands twice", key, "keep one of them")
            seen.add(key.value)
        return super().construct_mapping(node, deep)


for _kind, _pattern, _first in (
    ("null", r"~|null|Null|NULL|", [*"~nN", ""]),
    ("bool", r"true|True|TRUE|false|False|FALSE", [*"tTfF"]),
    ("int", r"[-+]?(?:0|[1-9][0-9]{0,17})", [*"-+0123456789"]),
    ("float", _DECIMAL, [*"-+.0123456789"]),
):
    _Loader.add_implicit_resolver(_TAG + _kind, re.compile(f"(?:{_pattern})$"), _first)


def load(text: str, *, source: str) -> object:
    """Return the document's data; None for an empty one."""
    if len(text) > MAX_CHARACTERS:
        raise errors.ConfigError(
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
        told = ", ".join(part for part in (error.context, error.problem) if part)
        rule, remedy = f"not valid YAML: {told}", _CORRECT
        if isinstance(error, _Refused):
            rule, remedy = str(error.problem), error.remedy
        raise errors.ConfigError(
            source=source,
            place=f"line {mark.line + 1}, column {mark.column + 1}" if mark else "",
            rule=rule,
            remedy=remedy,
        ) from error
    except yaml.reader.ReaderError as error:
        raise errors.ConfigError(
            source=source,
            place=_place_of(text, error.position),
            rule=f"the character {chr(int(error.character))!r} is not allowed in YAML",
            remedy="remove it",
        ) from error
    except RecursionError as error:
        raise errors.ConfigError(
            source=source,
            place="",
            rule="the values are nested too deeply",
            remedy="no setting needs more than a handful of levels",
        ) from error
    return data


def _place_of(text: str, position: int) -> str:
    before = text[:position]
    return f"line {before.count(chr(10)) + 1}, column {position - before.rfind(chr(10))}"
