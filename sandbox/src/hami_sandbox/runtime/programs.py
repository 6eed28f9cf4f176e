"""The sandbox's own programs, which every container has on its PATH.

`probe` drives the CUDA driver by commands (native/probe), `gpu-work` takes memory of a card and
holds it, as a training job would.
"""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

from hami.agent.containers import library
from hami.node import files
from hami_sandbox.runtime import gpu_work

GPU_WORK, PROBE = "gpu-work", "probe"
_SOURCE = Path(gpu_work.__file__)


def install(folder: Path) -> Path:
    """Install the programs into a folder; return it."""
    folder.mkdir(parents=True, exist_ok=True)
    command = _quoted(sys.executable, "-I", "-S", _SOURCE)
    script = f'#!/bin/sh\nexec {command} "$@"\n'
    files.write_atomic(folder / GPU_WORK, script.encode(), mode=0o755)
    probe = folder / PROBE
    if not probe.exists():
        files.write_atomic(probe, library.find_built("probe").read_bytes(), mode=0o755)
    return folder


def library_beside() -> Path:
    """Return the build of libvgpu that finds the agent's files in its own folder."""
    return library.find_built("libvgpu-beside.so", package=_SOURCE.parents[1])


def needed() -> list[str]:
    """Return the paths of Python and this package, which every container must see."""
    executable = Path(sys.executable).resolve()
    folders = (sys.prefix, sys.base_prefix, executable.parents[1], _SOURCE.parents[2])
    paths = [path for each in folders for path in (Path(each), Path(each).resolve())]
    return [str(path) for path in dict.fromkeys(paths) if path != Path("/")]


def _quoted(*words: str | Path) -> str:
    return " ".join(shlex.quote(str(word)) for word in words)
