"""Compare native/include/*_abi.h with the machine's cuda.h and nvml.h.

native/include/check_cuda_abi.c prints every number that our headers state. It is built twice, with
our headers and with NVIDIA's, and the two lists must be equal.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from pathlib import Path

from tests.gpu.workers import ROOT

INCLUDE = ROOT / "native" / "include"


def toolkit() -> Path | None:
    """Return the folder that has cuda.h."""
    folders = [Path(os.environ[name]) for name in ("CUDA_HOME", "CUDA_PATH") if name in os.environ]
    nvcc = shutil.which("nvcc")
    folders += [Path(nvcc).resolve().parents[1]] if nvcc else []
    folders.append(Path("/usr/local/cuda"))
    places = [folder / "include" for folder in folders]
    return next((place for place in places if (place / "cuda.h").exists()), None)


def numbers(flags: list[str]) -> list[str]:
    compiler = next(
        (found for name in ("cc", "gcc", "clang") if (found := shutil.which(name))), "cc"
    )
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder) / "numbers"
        subprocess.run(
            [compiler, "-std=c11", *flags, "-o", program, INCLUDE / "check_cuda_abi.c"],
            check=True,
            capture_output=True,
            text=True,
            timeout=60,
        )
        printed = subprocess.run([program], check=True, capture_output=True, text=True, timeout=10)
    return printed.stdout.splitlines()


def forgotten() -> list[str]:
    """Return the constants of our headers that check_cuda_abi.c does not print."""
    printed = (INCLUDE / "check_cuda_abi.c").read_text()
    stated = "".join((INCLUDE / name).read_text() for name in ("cuda_abi.h", "nvml_abi.h"))
    names = re.findall(r"\b([A-Z]\w+) = (?:\d|0x)", stated)
    return [f"{name} is not compared" for name in names if f"({name})" not in printed]


def differences() -> list[str]:
    """Return what our headers say otherwise than the machine's, or why nothing was compared."""
    place = toolkit()
    if place is None:
        return ["not checked: no cuda.h on this machine"]
    flags = ["-DREAL_CUDA", "-isystem", str(place)]
    if (place / "nvml.h").exists():
        flags.append("-DREAL_NVML")
    try:
        ours, real = numbers([]), numbers(flags)
    except subprocess.CalledProcessError as error:
        return [f"does not compile: {error.stderr[-1500:]}"]
    found = [f"ours {a}, theirs {b}" for a, b in zip(ours, real, strict=True) if a != b]
    return found + forgotten()


def count() -> int:
    return len(numbers([]))
