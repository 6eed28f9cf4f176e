"""Rows of `make gpu` against the stand-in driver: they run, and hold on it.

What a real card does is another matter: docs/gpu-results.md has what was measured there.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from native import build
from tests.native import building
from tests.native.container import Node, cards


def test_rows_for_memory_of_every_place_run(tmp_path: Path) -> None:
    Node(tmp_path / "node", cards(1))
    done = subprocess.run(
        [sys.executable, "-m", "tests.gpu.run", "places"],
        cwd=build.ROOT,
        env={
            **os.environ,
            "OUT": str(tmp_path),
            "FAKEGPU_DIR": str(tmp_path / "node"),
            "LD_LIBRARY_PATH": str(building.all_current() / "fakegpu"),
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    rows = json.loads((tmp_path / "gpu-results.json").read_text())["rows"]
    assert {row["case"]: row["verdict"] for row in rows} == dict.fromkeys(
        (
            "context",
            "managed (touched)",
            "managed, prefetched",
            "managed pool (touched)",
            "green context first",
            "card not granted",
        ),
        "ok",
    )
