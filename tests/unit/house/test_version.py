"""The version is written in pyproject.toml, and everything else agrees with it."""

from __future__ import annotations

import ast
import importlib.metadata
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[3]
PROJECTS = sorted([*ROOT.glob("pyproject.toml"), *ROOT.glob("*/pyproject.toml")])


def project(path: Path) -> dict[str, Any]:
    found = tomllib.loads(path.read_text("utf-8"))["project"]
    assert isinstance(found, dict)
    return found


VERSION = project(ROOT / "pyproject.toml")["version"]


@pytest.mark.parametrize("path", PROJECTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_distribution_has_it_and_needs_the_same_product(path: Path) -> None:
    found = project(path)
    assert found["version"] == VERSION
    extras = [each for more in found.get("optional-dependencies", {}).values() for each in more]
    for each in (*found.get("dependencies", ()), *extras):
        pinned = re.match(r"hami(?:-sandbox)?(?:\[[\w,]+\])?==(.+)", each)
        assert pinned is None or pinned[1] == VERSION, each


@pytest.mark.parametrize("path", PROJECTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_distribution_carries_the_licence(path: Path) -> None:
    assert (path.parent / "LICENSE").read_bytes() == (ROOT / "LICENSE").read_bytes()


def test_the_installed_package_has_it() -> None:
    """Run `make setup` if this fails: the version was changed after the last one."""
    assert importlib.metadata.version("hami") == VERSION


def test_the_chart_has_it() -> None:
    chart = yaml.safe_load((ROOT / "charts/hami/Chart.yaml").read_text("utf-8"))
    assert (chart["version"], chart["appVersion"]) == (VERSION, VERSION)
    values = yaml.safe_load((ROOT / "charts/hami/values.yaml").read_text("utf-8"))
    assert values["global"]["imageTag"] == "", "empty: images have the chart's appVersion"


def test_examples_and_pages_name_that_image() -> None:
    pages = [*ROOT.glob("examples/*/*.yaml"), ROOT / "README.md"]
    tags = {
        (path.relative_to(ROOT).as_posix(), tag)
        for path in pages
        for tag in re.findall(r"\bhami:(\d+\.\d+\.\d+)", path.read_text("utf-8"))
    }
    assert tags
    assert {(path, tag) for path, tag in tags if tag != VERSION} == set()


def test_no_module_has_one_of_its_own() -> None:
    assigned = [
        path
        for source in ("src", "sandbox/src")
        for path in (ROOT / source).rglob("*.py")
        for node in ast.parse(path.read_text("utf-8")).body
        if isinstance(node, ast.Assign)
        and any(isinstance(name, ast.Name) and name.id == "__version__" for name in node.targets)
    ]
    assert assigned == []


def test_the_changelog_has_it_or_what_is_not_released() -> None:
    changes = (ROOT / "CHANGELOG.md").read_text("utf-8")
    headings = re.findall(r"^## \[(.+?)\]", changes, re.MULTILINE)
    assert headings[0] == "Unreleased"
    assert headings[1:2] in ([], [VERSION])
