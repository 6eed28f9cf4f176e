"""Names and texts of the product keep the writing rules of docs/style.md."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[3]


def load() -> ModuleType:
    """Load the checker from its file: tests are imported as files, not as a package."""
    spec = importlib.util.spec_from_file_location(
        "house_words", Path(__file__).with_name("words.py")
    )
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


words = load()


@pytest.fixture(scope="module")
def result() -> tuple[list[str], list[object]]:
    findings, unused = words.check(ROOT)
    return [str(finding) for finding in findings], unused


def test_the_product_uses_the_words_of_the_glossary(result: tuple[list[str], list[object]]) -> None:
    findings, _ = result
    assert not findings, f"{len(findings)} places:\n" + "\n".join(findings)


def test_every_exception_is_still_needed(result: tuple[list[str], list[object]]) -> None:
    assert result[1] == []


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ('"""What a module is."""', ["first line begins with What"]),
        ('"""' + "x" * 81 + '"""', ["first line of 81 characters"]),
        ('"""A module.\n\nIt keeps every booking.\n"""', ["booking"]),
        ('"""A module."""\nclass WakeUps: ...', ["wake ups (in WakeUps)"]),
        ('"""A module."""\nx = 1  # nobody reads it (D4)', ["nobody", "reference D4"]),
        ('"""A module."""\nraise ValueError(f"pod {1} is gone")', ["gone"]),
        ('"""A module, see docs/nowhere.md."""', ["reference docs/nowhere.md"]),
        ('"""A module."""\nNAME = "hami_scheduler_wake_ups"', []),
        ('"""A mirror pod, 410 Gone, a stand-in."""', []),
    ],
)
def test_a_module_with_a_forbidden_word_is_found(
    source: str, found: list[str], tmp_path: Path
) -> None:
    (tmp_path / "src").mkdir()
    (tmp_path / "src/module.py").write_text(source)
    findings, _ = words.check(tmp_path)
    assert [finding.found for finding in findings] == found
