"""Pages point at things that exist, and the map shows the whole house."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
PACKAGES = ROOT / "src/hami"
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_within_the_repository_leads_somewhere(page: Path) -> None:
    targets = re.findall(r"\]\(([^)#\s]+)[^)]*\)", page.read_text("utf-8"))
    inner = [target for target in targets if "://" not in target]

    assert [target for target in inner if not (page.parent / target).exists()] == []


def test_the_map_lists_every_module_of_every_package_and_no_other() -> None:
    text = (ROOT / "docs/architecture.md").read_text("utf-8")
    listed: list[tuple[str, str]] = []
    for section in re.findall(r"^### (.*?)(?=^##|\Z)", text, re.DOTALL | re.MULTILINE):
        package = section.split("`")[1]
        listed += [
            (package, name) for name in re.findall(r"^\| `([^`]+)` \|", section, re.MULTILINE)
        ]

    there = {
        (path.parent.relative_to(PACKAGES).as_posix(), path.name)
        for path in PACKAGES.glob("*/**/*")
        if path.suffix in {".py", ".toml"} and path.name != "__init__.py"
    }
    assert len(listed) == len(set(listed))
    assert sorted(there - set(listed)) == [], "not on the map"
    assert sorted(set(listed) - there) == [], "not in the house"
