"""Changes that make a suite run."""

from __future__ import annotations

import pathlib

import pytest

from tests.selection import __main__ as program
from tests.selection.base import Base, Repository
from tests.selection.suites import SUITES, judge

ROOT = pathlib.Path(__file__).parents[3]
BASE = Base("0123456789abcdef", "test")


@pytest.mark.parametrize("name", SUITES)
def test_without_a_base_every_suite_runs(name: str) -> None:
    choice = judge(SUITES[name], Base(None, "nothing to compare with"), (), ROOT)
    assert choice.run
    assert "nothing to compare with" in choice.why


@pytest.mark.parametrize("name", SUITES)
def test_changed_pages_leave_every_suite_out(name: str) -> None:
    choice = judge(SUITES[name], BASE, ["docs/testing.md", "README.md"], ROOT)
    assert not choice.run
    assert "0123456789ab" in choice.why


@pytest.mark.parametrize("name", SUITES)
@pytest.mark.parametrize(
    "path", ["requirements/dev.txt", "tests/conftest.py", "tests/selection/suites.py"]
)
def test_what_decides_over_every_suite_makes_it_run(name: str, path: str) -> None:
    choice = judge(SUITES[name], BASE, ["README.md", path], ROOT)
    assert choice.run
    assert path in choice.why


@pytest.mark.parametrize("name", SUITES)
def test_each_of_its_test_files_makes_a_suite_run(name: str) -> None:
    for place in SUITES[name].tests:
        path = place if place.endswith(".py") else f"{place}/test_new.py"
        assert judge(SUITES[name], BASE, [path], ROOT).run, path


@pytest.mark.parametrize(
    ("path", "suites"),
    [
        ("src/hami/kube/client.py", {"conformance", "sandbox"}),
        ("src/hami/placement/decide.py", {"sandbox"}),
        ("native/libvgpu/abi.h", {"sandbox", "sanitizers"}),
        ("charts/hami/values.yaml", {"sandbox"}),
        ("sandbox/src/hami_sandbox/apiserver/differences.toml", {"conformance", "sandbox"}),
        ("tests/e2e/test_fleet.py", set()),
        ("tests/promises.toml", set()),
    ],
)
def test_a_product_file_makes_those_suites_run_that_reach_it(path: str, suites: set[str]) -> None:
    assert {
        name for name, suite in SUITES.items() if judge(suite, BASE, [path], ROOT).run
    } == suites


def test_the_program_says_why_a_suite_is_left_out(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(Repository, "base", lambda _: BASE)
    monkeypatch.setattr(Repository, "changed", lambda *_: {"README.md"})
    assert program.main(["sandbox"]) == program.LEFT_OUT
    assert capsys.readouterr().out == (
        "sandbox: is left out: none of its files changed since 0123456789ab (test)\n"
    )


def test_an_unknown_suite_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert program.main(["nothing"]) not in (0, program.LEFT_OUT)
    assert "conformance" in capsys.readouterr().err
