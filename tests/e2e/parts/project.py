"""This checkout and its own tools."""

from __future__ import annotations

import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[3]


def uv() -> Path:
    found = subprocess.run(
        [ROOT / "scripts/find-uv"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    return Path(found.stdout.strip())
