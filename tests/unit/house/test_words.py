"""Names and texts of product and tests keep the writing rules of docs/style.md."""

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


def test_product_and_tests_keep_the_writing_rules(
    result: tuple[list[str], list[object]],
) -> None:
    findings, _ = result
    assert not findings, f"{len(findings)} places:\n" + "\n".join(findings)


def test_every_exception_is_still_needed(result: tuple[list[str], list[object]]) -> None:
    assert result[1] == []


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ('"""What a module is."""', ["first line begins with What"]),
        ('"""Why a module is."""', ["first line begins with Why"]),
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


@pytest.mark.parametrize(
    ("path", "found"),
    [
        ("tests/unit/kube/test_module.py", ["booking", "first line begins with Who"]),
        ("benchmarks/module.py", ["booking", "first line begins with Who"]),
        ("tests/unit/house/test_module.py", ["first line begins with Who"]),
        ("tests/e2e/test_module.py", ["first line begins with Who"]),
        ("sandbox/tests/unit/module.py", ["first line begins with Who"]),
        ("hatch_build.py", ["first line begins with Who"]),
    ],
)
def test_a_module_beside_the_product_is_held_to_the_rules_of_its_folder(
    path: str, found: list[str], tmp_path: Path
) -> None:
    module = tmp_path / path
    module.parent.mkdir(parents=True, exist_ok=True)
    module.write_text('"""Who has a booking, see docs/nowhere.md."""')
    findings, _ = words.check(tmp_path)
    assert [finding.found for finding in findings] == found
