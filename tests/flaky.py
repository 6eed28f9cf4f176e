"""Repeat tests, and name those that failed (`make flaky SUITE= N=`).

    python -m tests.flaky --times 10 tests/unit/kube

A failure stops neither its run nor the next one. The output of a run is shown only if it failed.
The table at the end has one row per test that failed at least once. The exit code is 1 if there is
one, else 0. Arguments that are no paths go to pytest as they are (`-- -x`).

The same module is the plugin that writes each run's failures into a file.
"""

from __future__ import annotations

import argparse
import collections
import os
import pathlib
import subprocess
import sys
import tempfile
import time

import pytest

ROOT = pathlib.Path(__file__).parents[1]
#: Names the file that gets the ids of tests that fail, one a line.
FAILURES = "HAMI_FLAKY_FAILURES"
_PASSED, _FAILED = 0, 1


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    _note(report)


def pytest_collectreport(report: pytest.CollectReport) -> None:
    _note(report)


def _note(report: pytest.TestReport | pytest.CollectReport) -> None:
    """Write a failure down; setup and teardown of a test count as the test."""
    if report.failed and (path := os.environ.get(FAILURES)):
        with pathlib.Path(path).open("a", encoding="utf-8") as file:
            file.write(f"{report.nodeid}\n")


def run_once(arguments: list[str]) -> tuple[set[str], str]:
    """Run pytest; return the ids of the tests that failed, and what it printed."""
    with tempfile.NamedTemporaryFile(prefix="flaky-", suffix=".txt") as file:
        done = subprocess.run(
            [sys.executable, "-m", "pytest", "-q", "-p", "tests.flaky", *arguments],
            cwd=ROOT,
            env={**os.environ, FAILURES: file.name},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        failed = set(pathlib.Path(file.name).read_text("utf-8").splitlines())
    if done.returncode not in (_PASSED, _FAILED) or (done.returncode == _FAILED and not failed):
        failed.add(f"(pytest ended with exit code {done.returncode})")
    return failed, done.stdout


def table(failures: collections.Counter[str], times: int) -> str:
    """Return one row per test that failed, the most frequent first."""
    rows = [f"{count:>4} of {times:<4} {name}" for name, count in failures.most_common()]
    return "\n".join(["failed runs  test", *rows])


def main() -> int:
    parser = argparse.ArgumentParser("python -m tests.flaky", description="Repeat tests.")
    parser.add_argument("--times", type=int, default=10)
    parser.add_argument("suite", nargs="+", help="what pytest is to run")
    wanted = parser.parse_args()
    if wanted.times < 1:
        parser.error(f"--times {wanted.times}: run the suite at least once")
    failures: collections.Counter[str] = collections.Counter()
    for number in range(1, wanted.times + 1):
        begin = time.monotonic()
        failed, output = run_once(wanted.suite)
        failures.update(failed)
        if failed:
            say(output)
        seconds = time.monotonic() - begin
        say(f"flaky: run {number} of {wanted.times}: {len(failed)} failed, {seconds:.0f} s")
    if failures:
        say(table(failures, wanted.times))
        return 1
    say(f"flaky: nothing failed in {wanted.times} runs of {' '.join(wanted.suite)}")
    return 0


def say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
