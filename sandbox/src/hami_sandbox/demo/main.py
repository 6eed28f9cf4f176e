"""`hami demo`: a whole cluster on this machine, and examples of what hami does.

`hami` finds it by the entry point in sandbox/pyproject.toml.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib
import os
import shlex
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hami.cli import errors
from hami.kube import errors as kube_errors
from hami.serving import logs
from hami_sandbox.demo import flags
from hami_sandbox.errors import SandboxError

#: Libraries that must load before anything starts; some need packages of the system.
_NEEDED = ("rich", "grpc", "cryptography", "pynvml")
_WIDTH = 140


def main(arguments: Sequence[str], *, prog: str) -> int:
    asked = flags.build(prog).parse_args(arguments)
    if asked.no_examples and asked.example:
        raise errors.UsageError("--no-examples and --example exclude each other; drop one")
    _check_needed()
    session: Any = importlib.import_module("hami_sandbox.demo.session")
    settings = _settings(asked, session)
    _keep_quiet(asked.keep_logs)
    try:
        code: int = asyncio.run(session.Demo(settings, _console()).run())
        # All is cleaned up; who pressed Ctrl-C twice still gets the exit code.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    except (SandboxError, kube_errors.KubeError, OSError) as error:
        raise errors.CommandError(str(error)) from error
    return code


def _settings(asked: argparse.Namespace, session: Any) -> Any:
    """Read all that the user has written, before anything is started."""
    example = importlib.import_module("hami_sandbox.demo.example")
    fleet = importlib.import_module("hami_sandbox.demo.flags")
    try:
        real = len(asked.node) or len(fleet.NODES)
        if asked.nodes and asked.nodes < real:
            raise errors.usage(
                "--nodes", asked.nodes, f"is less than the {real} real ones", "give more, or none"
            )
        if asked.folder:
            importlib.import_module("hami_sandbox.cluster").check_folder(asked.folder)
        folder = asked.examples or example.default_folder()
        return session.Settings(
            plan=fleet.plan(asked.node, max(asked.nodes - real, 0)),
            examples=[] if asked.no_examples else example.load(folder, asked.example),
            insist=bool(asked.example),
            once=asked.once,
            folder=asked.folder,
            keep_logs=asked.keep_logs,
            command=shlex.quote(sys.argv[0]),
        )
    except SandboxError as error:
        raise errors.UsageError(str(error)) from error


def _check_needed() -> None:
    for name in _NEEDED:
        try:
            importlib.import_module(name)
        except ModuleNotFoundError as error:
            raise errors.CommandError(
                f"hami demo needs {name}, which is not installed; run `make demo` in a checkout, "
                "or install hami-sandbox again"
            ) from error
        except ImportError as error:
            raise errors.CommandError(
                f"hami demo needs {name}, which does not load here ({error}); install what it "
                "misses with your system's packages"
            ) from error


def _keep_quiet(folder: Path | None) -> None:
    """Keep log lines out of the picture; with --keep-logs they are kept with the others."""
    try:
        if folder is not None:
            folder.mkdir(parents=True, exist_ok=True)
        path = os.devnull if folder is None else folder / "demo.log"
        stream = Path(path).open("w", encoding="utf-8")  # noqa: SIM115 - lives as long as we do
    except OSError as error:
        raise errors.usage(
            "--keep-logs", str(folder), f"cannot be used ({error.strerror})", "take another"
        ) from error
    logs.set_up(level="info", stream=stream, format="text")


def _console() -> Any:
    """Return where everything is shown; a file or pipe is as wide as the summary wants."""
    console: Any = importlib.import_module("rich.console")
    terminal = sys.stdout.isatty()
    return console.Console(highlight=False, width=None if terminal else _WIDTH)
