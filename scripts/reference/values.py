"""The page of the chart's values, from the comments of values.yaml and the schema."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from scripts.reference import markdown

INTRO = """\
Every value of the chart, with its default. `charts/hami/values.schema.json` refuses values of
another type. [install.md](../install.md) shows how to use them together."""
_LONGEST = 60


def render(root: Path) -> str:
    """Return the page."""
    chart = root / "charts/hami"
    schema: dict[str, Any] = json.loads((chart / "values.schema.json").read_text("utf-8"))
    text = (chart / "values.yaml").read_text("utf-8")
    top = yaml.compose(text)
    assert isinstance(top, yaml.MappingNode)
    rows = _rows(top, (), text.splitlines(), _Schema(schema))
    head = ("value", "type", "default", "meaning")
    return markdown.page("Values of the chart", INTRO, [markdown.table(head, rows)])


class _Schema:
    def __init__(self, document: Mapping[str, Any]) -> None:
        self._document = document

    def type_of(self, keys: Sequence[str]) -> str:
        """Return what the schema allows for a value; empty: it names nothing."""
        found: Any = self._document
        for key in keys:
            found = self._resolved(found).get("properties", {}).get(key)
            if found is None:
                return ""
        return self._named(found)

    def _resolved(self, schema: Mapping[str, Any]) -> Mapping[str, Any]:
        while "$ref" in schema:
            found: Any = self._document
            for step in schema["$ref"].removeprefix("#/").split("/"):
                found = found[step]
            schema = found
        return schema

    def _named(self, schema: Mapping[str, Any]) -> str:
        schema = self._resolved(schema)
        if "enum" in schema:
            return ", ".join(markdown.code(json.dumps(each).strip('"')) for each in schema["enum"])
        choices = schema.get("anyOf") or schema.get("oneOf")
        if choices:
            return " or ".join(dict.fromkeys(filter(None, map(self._named, choices))))
        kind = schema.get("type", "")
        return kind if isinstance(kind, str) else " or ".join(kind)


def _rows(
    node: yaml.MappingNode, above: tuple[str, ...], lines: Sequence[str], schema: _Schema
) -> Iterator[tuple[str, str, str, str]]:
    meaning = ""
    for key, value in node.value:
        keys = (*above, str(key.value))
        own = _comment(lines, key.start_mark.line)
        # A key without a comment belongs to the one above it.
        meaning = own or meaning
        name = markdown.code(".".join(keys))
        if isinstance(value, yaml.MappingNode) and value.value:
            if own:
                yield name, "object", "", own
            yield from _rows(value, keys, lines, schema)
        else:
            yield name, schema.type_of(keys), _default(value), meaning


def _comment(lines: Sequence[str], at: int) -> str:
    """Return the comment right above a line, as one text."""
    found: list[str] = []
    for line in reversed(lines[:at]):
        stripped = line.strip()
        if not stripped.startswith("#"):
            break
        found.append(stripped.lstrip("# "))
    else:
        return ""  # the head of the file
    return " ".join(reversed(found))


def _default(node: yaml.Node) -> str:
    value = yaml.safe_load(yaml.serialize(node))
    text = json.dumps(value, ensure_ascii=False)
    return markdown.code(text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…")
