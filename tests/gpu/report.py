"""docs/gpu-results.md: written by the run, never by hand."""

from __future__ import annotations

import ctypes
import dataclasses
import datetime as dt
import json
import os
import platform
import shutil
import subprocess
from pathlib import Path

from tests.gpu.bench import Bench, Row
from tests.gpu.driver import MIB, Cuda
from tests.gpu.workers import ROOT

PAGE = ROOT / "docs" / "gpu-results.md"


def commit() -> str:
    """Return the commit of this checkout; a copy of one is told by HAMI_COMMIT."""
    told = os.environ.get("HAMI_COMMIT")
    git = shutil.which("git")
    if not told and git and (ROOT / ".git").exists():
        found = subprocess.run(
            [git, "-C", ROOT, "rev-parse", "HEAD"], check=False, capture_output=True, text=True
        )
        if found.returncode == 0:
            return found.stdout.strip()
    return told or "not known"


def torch_version(python: str | None) -> str:
    if python is None:
        return "none"
    found = subprocess.run(
        [python, "-c", "import torch; print(torch.__version__)"],
        check=False,
        capture_output=True,
        text=True,
        timeout=120,
    )
    return found.stdout.strip() or "does not load"


def environment(bench: Bench) -> dict[str, str]:
    version = ctypes.c_int()
    Cuda().call("cuDriverGetVersion", ctypes.byref(version))
    return {
        "card": f"{bench.nvml.name()}, {bench.nvml.memory()[0] // MIB} MiB",
        "driver": bench.nvml.driver(),
        "CUDA of the driver": f"{version.value // 1000}.{version.value % 1000 // 10}",
        "PyTorch": torch_version(bench.torch_python),
        "Python": platform.python_version(),
        "kernel": platform.release(),
        "processors": str(os.cpu_count()),
        "commit": commit(),
        "date": dt.datetime.now(dt.UTC).strftime("%Y-%m-%d %H:%M UTC"),
    }


def page(facts: dict[str, str], rows: list[Row], seconds: float) -> str:
    failed = [row for row in rows if row.failed]
    passed = [row for row in rows if row.verdict == "ok"]
    others = len(rows) - len(failed) - len(passed)
    lines = [
        "# What was measured on a real GPU",
        "",
        "Written by `make gpu` (tests/gpu), never by hand. Native is the same program without",
        "libvgpu, in the same run. MiB are what NVML counts for the processes, read from outside",
        "the container all the while.",
        "",
        "| | |",
        "|---|---|",
        *(f"| {name} | {value} |" for name, value in facts.items()),
        f"| length of the run | {seconds:.0f} s |",
        f"| result | {len(passed)} ok, {len(failed)} failed, {others} shown only or left out |",
    ]
    section = ""
    for row in rows:
        if row.section != section:
            section = row.section
            lines += ["", f"## {section.capitalize() if section.islower() else section}", ""]
            lines += ["| case | native | ours | limit | verdict |", "|---|---|---|---|---|"]
        cells = (row.case, row.native, row.ours, row.limit, row.verdict)
        lines.append("| " + " | ".join(cell.replace("|", "/") for cell in cells) + " |")
    return "\n".join(lines) + "\n"


def write(facts: dict[str, str], rows: list[Row], seconds: float, folder: Path) -> None:
    text = page(facts, rows, seconds)
    if "FAKEGPU_DIR" not in os.environ:  # the page is about real cards
        PAGE.write_text(text)
    (folder / "gpu-results.md").write_text(text)
    found = {"environment": facts, "rows": [dataclasses.asdict(row) for row in rows]}
    (folder / "gpu-results.json").write_text(json.dumps(found, indent=1))
