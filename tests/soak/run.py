"""`make soak`: runs too long for CI, and the page docs/soak-results.md.

    python -m tests.soak.run [--short] [--only churn,storms]

Each step is a run of pytest with more seeds, pods or cases than CI has. Steps on real Kubernetes
need root, and are no part of a short run; the page says what was not run. The page is written by
this command alone. The exit code is 1 if a step failed.
"""

from __future__ import annotations

import argparse
import dataclasses
import datetime as dt
import os
import pathlib
import re
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence

from tests.gpu.report import commit

ROOT = pathlib.Path(__file__).parents[2]
PAGE = ROOT / "docs" / "soak-results.md"
_CLOSING = re.compile(r"(?:\d+ [a-z]+(?:, )?)+ in [\d.]+s")
#: Lines that a step prints for the reader.
_FIGURES = re.compile(r"killed \{.*|^\d+ pods on.*$", re.MULTILINE)


@dataclasses.dataclass(frozen=True)
class Step:
    name: str
    what: str
    suite: Sequence[str]
    environment: Mapping[str, str] = dataclasses.field(default_factory=dict)
    root: bool = False


@dataclasses.dataclass(frozen=True)
class Result:
    step: Step
    passed: bool | None
    """None: it was not run."""
    closing: str
    seconds: float
    figures: tuple[str, ...] = ()


def steps(*, short: bool) -> list[Step]:
    seeds, pods, storms = (1, 60, 4) if short else (5, 1000, 100)
    bursts = tuple(
        f"tests/e2e/test_{name}.py" for name in ("scheduler_burst", "bare_plugin", "agent_burst")
    )
    whole = {"HAMI_E2E_WHOLE": "1"}
    real = ("-s", "--timeout=1200")
    return [
        Step(
            "churn",
            f"{seeds} seeds, {pods} pods each, under kills",
            ("-s", "tests/soak"),
            {"HAMI_SOAK_SEEDS": str(seeds), "HAMI_SOAK_PODS": str(pods)},
        ),
        Step(
            "storms",
            f"{storms} seeds of faults, of watches and of an agent's node",
            ("tests/unit/kube/test_storm.py", "tests/unit/agent/test_core_storm.py"),
            {"HAMI_STORMS": str(storms)},
        ),
        Step(
            "informer",
            "10,000 orders of lists, events, answers and restores against a plain model",
            ("tests/unit/kube/test_informer_model.py",),
            {"HAMI_INFORMER_EXAMPLES": "1000" if short else "10000"},
        ),
        Step(
            "slow bindings",
            "1,000 pods at once on API servers that take up to 1 s for a Binding",
            ("tests/unit/scheduler/test_bursts.py",),
            {"HAMI_BURST_PODS": "1000"},
        ),
        Step(
            "oracle",
            "8,000 clusters against the slow reference",
            ("tests/oracle",),
            {"HAMI_ORACLE_CASES": "8000"},
        ),
        Step(
            "histories",
            "200 random histories of a cluster keep every promise",
            ("tests/unit/cluster/test_operations.py",),
            {"HAMI_HISTORIES": "200"},
        ),
        Step(
            "sanitizers",
            "libvgpu's tests under address, undefined-behaviour and thread sanitizers",
            ("tests/native/test_sanitizers.py",),
        ),
        Step(
            "admission",
            "3,000 drawn pods, patched, before a real API server",
            (*real, "tests/e2e/test_admission_patches.py"),
            whole,
            root=True,
        ),
        Step(
            "bursts",
            "hundreds of pods at once on real Kubernetes",
            (*real, *bursts),
            whole,
            root=True,
        ),
        Step(
            "fleet",
            "simulated nodes beside real ones",
            (*real, "tests/e2e/test_fleet.py"),
            whole,
            root=True,
        ),
    ]


def run(step: Step) -> Result:
    say(f"\n== soak: {step.name}: {step.what}")
    begin = time.monotonic()
    process = subprocess.Popen(
        [sys.executable, "-m", "pytest", "-ra", *step.suite],
        cwd=ROOT,
        env={**os.environ, **step.environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert process.stdout is not None
    output = ""
    for line in process.stdout:
        sys.stdout.write(line)
        output += line
    passed = process.wait() == 0
    seconds = time.monotonic() - begin
    closing = (_CLOSING.findall(output) or ["no closing line"])[-1]
    failures = re.findall(r"^(?:FAILED|ERROR) (\S+)", output, re.MULTILINE)
    figures = tuple(figure.strip(". ") for figure in _FIGURES.findall(output))
    return Result(step, passed, closing.partition(" in ")[0], seconds, (*failures, *figures))


def page(results: Sequence[Result], *, short: bool) -> str:
    """Return the page; its words are as stable as the results are."""
    day = dt.datetime.now(dt.UTC).date().isoformat()
    words = {True: "passed", False: "FAILED", None: "not run"}
    rows = [
        f"| {result.step.name} | {result.step.what} | {words[result.passed]} | {result.closing} "
        f"| {result.seconds / 60:.1f} |"
        for result in results
    ]
    figures = [f"- {result.step.name}: {figure}" for result in results for figure in result.figures]
    kind = "A short run (`make soak SHORT=1`)" if short else "A whole run (`make soak`)"
    return "\n".join(
        [
            "# Results of the soak tests",
            "",
            "Written by `make soak`, never by hand.",
            f"{kind} of {day}, commit {commit()}, {os.cpu_count()} cores.",
            "",
            "| step | what | result | tests | minutes |",
            "|---|---|---|---|---|",
            *rows,
            *(["", "Figures and failures:", "", *figures] if figures else []),
            "",
        ]
    )


def main() -> int:
    parser = argparse.ArgumentParser("python -m tests.soak.run", description="Run long tests.")
    parser.add_argument("--short", action="store_true", help="a few minutes, to try the command")
    parser.add_argument("--only", default="", help="names of steps, with commas between them")
    wanted = parser.parse_args()
    known = steps(short=wanted.short)
    names = wanted.only.split(",") if wanted.only else [step.name for step in known]
    if unknown := set(names) - {step.name for step in known}:
        parser.error(
            f"--only {','.join(sorted(unknown))}: not a step; choose from "
            f"{', '.join(step.name for step in known)}"
        )
    results = []
    for step in known:
        if step.name not in names:
            results.append(Result(step, None, "not asked for", 0.0))
        elif step.root and (wanted.short or os.geteuid() != 0):
            why = "left out of a short run" if wanted.short else "needs root"
            results.append(Result(step, None, why, 0.0))
        else:
            results.append(run(step))
    PAGE.write_text(page(results, short=wanted.short), "utf-8")
    say(f"\nsoak: {PAGE.relative_to(ROOT)} is written")
    return int(any(result.passed is False for result in results))


def say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
