"""docs/install.md speaks of values that exist and of commands that work."""

from __future__ import annotations

import re

import pytest

from tests.chart import rendering
from tests.chart.test_values import LEAVES
from tests.e2e.parts import project

PAGE = (project.ROOT / "docs/install.md").read_text()
BLOCKS = re.findall(r"^```\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)
COMMANDS = [
    line for block in BLOCKS for line in block.replace("\\\n", " ").splitlines() if "helm" in line
]
SETTING = re.compile(r"--set '?([\w.]+)=([^\s']+)")


def test_every_value_on_the_page_is_one_of_the_chart() -> None:
    names = re.findall(
        r"`((?:scheduler|admissionPolicy|fallback|global|webhookOnly)\.[\w.]+)", PAGE
    )
    assert len(set(names)) > 10
    known = {*LEAVES, *(path.rpartition(".")[0] for path in LEAVES)}
    assert sorted(set(names) - known) == []


@pytest.mark.parametrize("command", [each for each in COMMANDS if "--set" in each])
def test_what_a_command_sets_is_accepted_and_has_an_effect(command: str) -> None:
    values = {
        path: [text.strip("{}")] if text.startswith("{") else {"true": True}.get(text, text)
        for path, text in SETTING.findall(command)
    }
    assert set(values) <= set(LEAVES)
    for path in values:
        others = {name: value for name, value in values.items() if name != path}
        assert rendering.render(values) != rendering.render(others)


def test_the_objects_on_the_page_are_those_of_a_release_named_hami() -> None:
    rendered = rendering.render()
    listed = re.findall(r"^\| (\w+?)s? ((?:`[\w-]+`(?:, )?)+) \|", PAGE, re.MULTILINE)
    assert len(listed) > 4
    for kind, names in listed:
        for name in re.findall(r"`([\w-]+)`", names):
            assert kind == "Secret" or rendered.has(kind, name)
