"""The steps of `make soak`, and the page that it writes."""

from __future__ import annotations

import pathlib

import pytest

from tests.soak import run as soak
from tests.soak.run import Result, Step

STEP = Step("storms", "4 seeds", ("tests/x.py",))


@pytest.mark.parametrize("short", [True, False])
def test_every_path_of_every_step_exists(*, short: bool) -> None:
    suites = [path for step in soak.steps(short=short) for path in step.suite]
    paths = [path for path in suites if path.startswith("tests/")]
    assert paths
    assert [path for path in paths if not (soak.ROOT / path).exists()] == []


def test_the_page_tells_what_passed_failed_and_was_not_run() -> None:
    results = [
        Result(STEP, passed=True, closing="12 passed", seconds=90.0),
        Result(
            STEP, passed=False, closing="1 failed", seconds=6.0, figures=("tests/x.py::test_y",)
        ),
        Result(STEP, passed=None, closing="needs root", seconds=0.0),
    ]
    page = soak.page(results, short=True)
    rows = [line.split(" | ")[2:] for line in page.splitlines() if line.startswith("| storms")]
    assert rows == [
        ["passed", "12 passed", "1.5 |"],
        ["FAILED", "1 failed", "0.1 |"],
        ["not run", "needs root", "0.0 |"],
    ]
    assert "- storms: tests/x.py::test_y" in page


def test_an_unknown_step_is_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["soak", "--only", "churn,sleep"])
    monkeypatch.setattr(soak, "PAGE", tmp_path / "page.md")
    with pytest.raises(SystemExit):
        soak.main()
    assert "--only sleep: not a step; choose from churn, storms" in capsys.readouterr().err
    assert not soak.PAGE.exists()
