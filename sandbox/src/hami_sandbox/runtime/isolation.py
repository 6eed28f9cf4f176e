"""Find out whether this machine allows namespaces, by a test container."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

from hami_sandbox.runtime import kernel, programs, shim
from hami_sandbox.runtime.records import BUNDLE, ROOT, Bundle
from hami_sandbox.runtime.spec import Isolation

#: `environment` forbids namespaces, as some machines do.
VARIABLE = "HAMI_SANDBOX_ISOLATION"
_SECONDS = 20.0
_PROGRAM = "/bin/true"
_WITH = "containers run in namespaces, with a root of their own"
_WITHOUT = "containers run with environment paths and LD_PRELOAD, without a root of their own"

_KEPT = ("LD_LIBRARY_PATH", "HAMI_SANDBOX_LIFELINE")
_IMPORT_ROOT = Path(shim.__file__).parents[2]


class Found(NamedTuple):
    isolation: Isolation
    #: The isolation, and the reason for it, for people.
    sentence: str


def shim_command(function: str, *arguments: str) -> list[str]:
    """Return the command that runs a function of the shim in a Python of its own."""
    code = (
        f"import sys; sys.path.insert(0, {str(_IMPORT_ROOT)!r}); "
        f"from hami_sandbox.runtime import shim; shim.{function}()"
    )
    return [sys.executable, "-I", "-S", "-c", code, *arguments]


def shim_environment() -> dict[str, str]:
    """Return the shim's environment: libraries for Python, and the lifeline."""
    return {name: os.environ[name] for name in _KEPT if name in os.environ}


def detect(bin_folder: Path | None = None) -> Found:
    """Return the isolation that works here; `bin_folder` has the containers' programs."""
    if os.environ.get(VARIABLE) == Isolation.ENVIRONMENT:
        why = f"{VARIABLE}={Isolation.ENVIRONMENT} is set"
        return Found(Isolation.ENVIRONMENT, f"{_WITHOUT}, because {why}")
    if bin_folder is None:
        with tempfile.TemporaryDirectory(prefix="hami-try-") as folder:
            return detect(programs.install(Path(folder, "bin")))
    problem = _try(bin_folder)
    if problem:
        why = f"this machine does not allow namespaces ({problem})"
        return Found(Isolation.ENVIRONMENT, f"{_WITHOUT}, because {why}")
    return Found(Isolation.NAMESPACES, _WITH)


def _try(bin_folder: Path) -> str:
    """Run a program as containers are run; return the problem, or empty."""
    with tempfile.TemporaryDirectory(prefix="hami-try-", dir=bin_folder.parent) as name:
        folder = Path(name)
        (folder / ROOT).mkdir()
        bundle = Bundle(
            namespaces=True,
            argv=[_PROGRAM],
            env={},
            mounts=[(name, "/usr/local/hami-try/mount", kernel.READ_ONLY)],
            working_dir="",
            log="",
            hostname="try",
            needed=programs.needed(),
            programs=str(bin_folder),
        )
        (folder / BUNDLE).write_bytes(bundle.encode())
        try:
            done = subprocess.run(  # noqa: S603 - our own shim
                shim_command(shim.try_namespaces.__name__, name),
                env=shim_environment(),
                capture_output=True,
                text=True,
                timeout=_SECONDS,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return f"no answer in {_SECONDS:g} s"
    return "" if done.returncode == 0 else done.stderr.strip() or f"exit code {done.returncode}"
