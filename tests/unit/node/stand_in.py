"""A process on stand-in GPUs: the driver reads its folder once per process."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from hami_sandbox import gpus

_PRELUDE = """
import dataclasses, json, os, sys, threading, time
from pathlib import Path
from hami.node.nvml import Nvml, NvmlError
from hami_sandbox import gpus
folder = Path(os.environ["FAKEGPU_DIR"])
root = os.environ["DRIVER_ROOT"]
def card(index):
    return gpus.read_node(folder)[index].uuid
"""


def driver_root(folder: Path) -> Path:
    """Lay out the stand-in NVML as a driver is below its root."""
    target = folder / "usr/lib64"
    target.mkdir(parents=True, exist_ok=True)
    shutil.copy(gpus.driver_folder() / "libnvidia-ml.so.1", target / "libnvidia-ml.so.1")
    return folder


def run(code: str, *, node: Path, root: Path) -> Any:
    """Run `code`; give what it left in `result`."""
    environment = {name: text for name, text in os.environ.items() if "_VISIBLE_" not in name}
    environment.update(FAKEGPU_DIR=str(node), DRIVER_ROOT=str(root))
    done = subprocess.run(
        [sys.executable, "-c", f"{_PRELUDE}\n{code}\nprint(json.dumps(result))"],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])
