"""Every promise to users has a test that runs, a page, or an open gap."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.promises import checker

ROOT = Path(__file__).resolve().parents[3]

GOOD = "tests/unit/test_good.py"
GOOD_FILE = """
import unittest
import pytest as pt
from pytest import mark, skip

@pt.fixture
def card():
    return 1

def test_runs(card):
    assert "skip" and card.skip

@pt.mark.parametrize("n", [1, 2])
async def test_runs_for_each(n): ...

def test_skips(): pt.skip("no")
def test_skips_by_name(): skip("no")

@pt.mark.skipif(True, reason="")
def test_is_marked(): ...

@mark.xfail
def test_may_fail(): ...

@pt.mark.parametrize("n", [pt.param(1, marks=pt.mark.skip(reason=""))])
def test_has_a_marked_case(n): ...

def test_needs_a_module(): pt.importorskip("torch")

def helper(): ...

class TestGroup:
    def test_inside(self): ...
    def test_left(self): self.skipTest("no")

@pt.mark.skip
class TestMarked:
    def test_inside(self): ...

class TestWithMark:
    pytestmark = pt.mark.xfail
    def test_inside(self): ...

class Helper:
    def test_uncollected(self): ...
"""


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Return a small repository with tests and pages, good and bad."""
    files = {
        GOOD: GOOD_FILE,
        "tests/unit/test_gone.py": "import pytest\npytest.skip(allow_module_level=True)\n"
        "def test_a(): ...\n",
        "tests/unit/test_marked.py": "import pytest\npytestmark = [pytest.mark.skipif(1)]\n"
        "def test_a(): ...\n",
        "tests/unit/test_fixture.py": "import pytest\n@pytest.fixture\n"
        "def gpu(): pytest.skip('no GPU')\ndef test_a(gpu): ...\n",
        "tests/unit/helper.py": "def test_a(): ...\n",
        "docs/page.md": "# Page\n",
        "docs/empty.md": "\n",
    }
    for name, text in files.items():
        path = tmp_path / "repository" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (tmp_path / "outside.md").write_text("# Outside\n")
    return tmp_path / "repository"


def promises(line: str, *, row: int = 7, others: int = 82) -> str:
    """Return a file in which row 7 holds `line`, and the others are open."""
    rows = [
        f'[[promise]]\nrow = {n}\ntitle = "t"\n' + (line if n == row else 'open = "later"')
        for n in range(1, others + 1)
    ]
    return "\n".join(rows)


def test_every_promise_is_kept_documented_or_openly_missing() -> None:
    assert checker.problems((ROOT / "tests/promises.toml").read_text("utf-8"), ROOT) == []


@pytest.mark.parametrize(
    "line",
    [
        'open = "the agent"',
        'doc = "docs/page.md"',
        f'tests = ["{GOOD}::test_runs"]',
        f'tests = ["{GOOD}::test_runs"]\ndoc = "docs/page.md"',
        f'tests = ["{GOOD}::test_runs_for_each", "{GOOD}::TestGroup::test_inside"]',
    ],
)
def test_a_sound_row_is_accepted(root: Path, line: str) -> None:
    assert checker.problems(promises(line), root) == []


@pytest.mark.parametrize(
    ("line", "want"),
    [
        ("", "needs tests, doc or open"),
        ('open = ""', "open must be a text"),
        ('open = "x"\ndoc = "docs/page.md"', "is open and has doc"),
        (f'open = "x"\ntests = ["{GOOD}::test_runs"]', "is open and has tests"),
        ('opne = "x"\ndoc = "docs/page.md"', "unknown key 'opne'"),
        ('doc = "docs/none.md"', "there is no page"),
        ('doc = "docs/empty.md"', "is empty"),
        ('doc = "docs"', "there is no page"),
        ('doc = "../outside.md"', "there is no page"),
        ("tests = []", "at least one test id"),
        (f'tests = "{GOOD}::test_runs"', "must be a list"),
        (f'tests = ["{GOOD}::test_runs", "{GOOD}::test_runs"]', "each once"),
    ],
)
def test_an_unsound_row_is_named(root: Path, line: str, want: str) -> None:
    (problem,) = checker.problems(promises(line), root)

    assert problem.startswith("row 7: ")
    assert want in problem


@pytest.mark.parametrize(
    ("test", "want"),
    [
        ("tests/unit/test_none.py::test_a", "no test file"),
        ("tests/unit/helper.py::test_a", "no test file"),
        ("docs/page.md::test_a", "no test file"),
        (f"{GOOD}::test_none", "there is no test"),
        (f"{GOOD}::test_runs_for_each[1]", "there is no test"),
        (f"{GOOD}::helper", "there is no test"),
        (f"{GOOD}::Helper::test_uncollected", "there is no test"),
        (f"{GOOD}::TestGroup::test_none", "there is no test"),
        (f"{GOOD}::test_runs::test_runs", "there is no test"),
        (f"{GOOD}::TestGroup", "not a single test"),
        (GOOD, "not a single test"),
    ],
)
def test_a_test_that_does_not_exist_is_named(root: Path, test: str, want: str) -> None:
    (problem,) = checker.problems(promises(f'tests = ["{test}"]'), root)

    assert want in problem


@pytest.mark.parametrize(
    ("test", "way_out"),
    [
        (f"{GOOD}::test_skips", "skip (line 16)"),
        (f"{GOOD}::test_skips_by_name", "skip (line 17)"),
        (f"{GOOD}::test_is_marked", "skipif"),
        (f"{GOOD}::test_may_fail", "xfail"),
        (f"{GOOD}::test_has_a_marked_case", "skip"),
        (f"{GOOD}::test_needs_a_module", "importorskip"),
        (f"{GOOD}::TestGroup::test_left", "skipTest"),
        (f"{GOOD}::TestMarked::test_inside", "skip"),
        (f"{GOOD}::TestWithMark::test_inside", "xfail"),
        ("tests/unit/test_gone.py::test_a", "skip"),
        ("tests/unit/test_marked.py::test_a", "skipif"),
        ("tests/unit/test_fixture.py::test_a", "skip"),
    ],
)
def test_a_test_that_may_be_skipped_keeps_no_promise(root: Path, test: str, way_out: str) -> None:
    (problem,) = checker.problems(promises(f'tests = ["{test}"]'), root)

    assert "may not run" in problem
    assert way_out in problem


def test_missing_doubled_and_foreign_rows_are_named(root: Path) -> None:
    assert checker.problems(promises("", row=0, others=81), root) == ["row 82 is missing"]
    twice = promises("", row=0) + "\n" + promises("", row=0, others=1)
    assert checker.problems(twice, root) == ["row 1 is there 2 times"]
    assert checker.problems(promises("", row=0, others=83), root) == [
        "row 83 is not one of 1 to 82"
    ]


def test_a_file_that_is_no_list_of_promises_is_named(root: Path) -> None:
    assert checker.problems("[[promise", root)[0].startswith("not TOML")
    assert len(checker.problems("", root)) == 82
    assert "unknown table 'promises'" in checker.problems("[promises]", root)
