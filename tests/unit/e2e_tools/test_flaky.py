"""`make flaky` names what failed, how often, and tells it by its exit code."""

from __future__ import annotations

import collections
import pathlib

import pytest

from tests import flaky

#: Fails in every second run.
NOW_AND_THEN = """
import pathlib

def test_always_passes():
    pass

def test_now_and_then():
    runs = pathlib.Path(__file__).with_name("runs")
    runs.write_text((runs.read_text() if runs.exists() else "") + "x")
    assert len(runs.read_text()) % 2
"""


def flaky_on(
    monkeypatch: pytest.MonkeyPatch, folder: pathlib.Path, text: str, *, times: int
) -> int:
    suite = folder / "test_it.py"
    suite.write_text(text)
    ours = ["--rootdir", str(folder), "-p", "no:cacheprovider", "-c", "/dev/null"]
    monkeypatch.setattr("sys.argv", ["flaky", "--times", str(times), "--", *ours, str(suite)])
    return flaky.main()


def test_a_test_that_fails_now_and_then_is_named_with_its_count(
    monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert flaky_on(monkeypatch, tmp_path, NOW_AND_THEN, times=2) == 1
    last = capsys.readouterr().out.splitlines()[-2:]
    assert last[0] == "failed runs  test"
    assert last[1].split() == ["1", "of", "2", "test_it.py::test_now_and_then"]


def test_nothing_failed_is_a_success(
    monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert flaky_on(monkeypatch, tmp_path, "def test_it():\n    pass\n", times=2) == 0
    assert "nothing failed in 2 runs" in capsys.readouterr().out


@pytest.mark.parametrize("text", ["import nothing_of_that_name", ""])
def test_a_run_without_results_counts_as_failed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path, text: str
) -> None:
    assert flaky_on(monkeypatch, tmp_path, text, times=1) == 1


def test_the_most_frequent_failure_comes_first() -> None:
    told = flaky.table(collections.Counter({"seldom": 1, "often": 3}), 5).splitlines()
    assert [line.split()[-1] for line in told] == ["test", "often", "seldom"]
