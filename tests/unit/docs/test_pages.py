"""Pages point at existing things, and README answers first questions."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_within_the_repository_leads_somewhere(page: Path) -> None:
    targets = re.findall(r"\]\(([^)#\s]+)[^)]*\)", page.read_text("utf-8"))
    inner = [target for target in targets if "://" not in target]

    assert [target for target in inner if not (page.parent / target).exists()] == []


def test_the_readme_leads_to_the_answers_of_three_questions() -> None:
    """Two hops: README to architecture.md, architecture.md to the file that has the text."""
    assert "(docs/architecture.md)" in (ROOT / "README.md").read_text("utf-8")
    page = ROOT / "docs/architecture.md"
    rows = re.findall(
        r"^\| (.+\?) \| \[.+\]\((.+)\) \| `(.+)` \|$", page.read_text("utf-8"), re.MULTILINE
    )
    answers = [
        question for question, target, text in rows if text in (page.parent / target).read_text()
    ]

    assert answers == [question for question, _, _ in rows]
    for subject in ("refuses a card for lack of memory", "limit written to", "used memory"):
        assert any(subject in question for question in answers)


def test_the_first_change_of_contributing_can_be_made() -> None:
    page = (ROOT / "CONTRIBUTING.md").read_text("utf-8")
    (text,) = re.findall(r'grep -rn "(.+)" src', page)
    (source,) = re.findall(r"it is in `(src/.+?)`", page)
    failing = re.findall(r"FAILED (\S+)::(\w+)", page)

    assert text in (ROOT / source).read_text("utf-8")
    assert len(failing) == 2
    for path, name in failing:
        test = (ROOT / path).read_text("utf-8")
        assert f"def {name}(" in test
        assert text in test


def test_the_journeys_name_modules_that_exist() -> None:
    text = (ROOT / "docs/architecture.md").read_text("utf-8")
    source = ROOT / "src/hami"
    packages = {path.name for path in source.iterdir() if path.is_dir()}
    named = {
        name
        for name in re.findall(r"`([a-z_]+(?:\.[a-z_]+)+)`", text)
        if name.partition(".")[0] in packages
    }
    assert len(named) > 20
    assert {n for n in named if not (source / f"{n.replace('.', '/')}.py").exists()} == set()
