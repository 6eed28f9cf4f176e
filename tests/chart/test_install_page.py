"""docs/install.md speaks of values that exist and of commands that work."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from tests.chart import rendering
from tests.chart.test_values import LEAVES
from tests.e2e.parts import project

PAGE = (project.ROOT / "docs/install.md").read_text()
#: Language and text of each.
BLOCKS = re.findall(r"^```(\w*)\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)
EXAMPLES = [yaml.safe_load(text) for language, text in BLOCKS if language == "yaml"]
COMMANDS = [
    line
    for language, text in BLOCKS
    if not language
    for line in text.replace("\\\n", " ").splitlines()
    if "helm" in line
]
WORDS = {"true": True, "false": False}
SETTING = re.compile(r"--set '?([\w.]+)=([^\s']+)")


def test_there_is_something_to_look_at() -> None:
    assert len(COMMANDS) > 5
    assert len(EXAMPLES) > 3


def test_every_value_on_the_page_is_one_of_the_chart() -> None:
    names = re.findall(
        r"(?:`|`<)((?:scheduler|admissionPolicy|fallback|global|webhookOnly|devicePlugin)\.[\w.]+)",
        PAGE,
    )
    assert len(set(names)) > 10
    known = {*LEAVES, *(path.rpartition(".")[0] for path in LEAVES)}
    assert sorted(set(names) - known) == []


@pytest.mark.parametrize("command", [each for each in COMMANDS if "--set" in each])
def test_what_a_command_sets_is_accepted_and_has_an_effect(command: str) -> None:
    values = {
        path: [text.strip("{}")] if text.startswith("{") else WORDS.get(text, text)
        for path, text in SETTING.findall(command)
    }
    assert set(values) <= set(LEAVES)
    whole = rendering.render(values)
    for path in values:
        others = {name: value for name, value in values.items() if name != path}
        assert rendering.render(others) != whole


def without(values: Any) -> Iterator[Any]:
    """Yield the values without each one of them."""
    for name, value in values.items():
        if isinstance(value, dict):
            for less in without(value):
                yield {**values, name: less}
        else:
            yield {other: each for other, each in values.items() if other != name}


@pytest.mark.parametrize("example", EXAMPLES)
def test_an_example_of_values_is_accepted_and_each_of_them_has_an_effect(example: Any) -> None:
    whole = rendering.render(example)
    for less in without(example):
        assert rendering.render(less) != whole


def test_the_objects_on_the_page_are_those_of_a_release_named_hami() -> None:
    rendered = rendering.render()
    listed = re.findall(r"^\| (\w+?)s? ((?:`[\w-]+`(?:, )?)+) \|", PAGE, re.MULTILINE)
    assert len(listed) > 4
    for kind, names in listed:
        for name in re.findall(r"`([\w-]+)`", names):
            assert kind == "Secret" or rendered.has(kind, name)
