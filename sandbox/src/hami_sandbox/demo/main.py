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
from hami_sandbox.errors import SandboxError
from hami_sandbox.plan import NodePlan, Plan, parse_node

#: Libraries that must load before anything starts; some need packages of the system.
_NEEDED = ("rich", "grpc", "cryptography", "pynvml")
_WIDTH = 140


def main(arguments: Sequence[str], *, prog: str) -> int:
    asked = build_parser(prog).parse_args(arguments)
    if asked.no_examples and asked.example:
        raise errors.UsageError("--no-examples and --example exclude each other; drop one")
    _check_needed()
    session: Any = importlib.import_module("hami_sandbox.demo.session")
    settings = _settings(asked, session)
    _keep_quiet(asked.keep_logs)
    try:
        code: int = asyncio.run(session.Demo(settings, _console()).run())
        # All is cleaned up; a second Ctrl-C must not change the exit code.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    except (SandboxError, kube_errors.KubeError, OSError) as error:
        raise errors.CommandError(str(error)) from error
    return code


def _settings(asked: argparse.Namespace, session: Any) -> Any:
    """Read flags and files before anything is started."""
    example = importlib.import_module("hami_sandbox.demo.example")
    try:
        real = len(asked.node) or len(NODES)
        if asked.nodes and asked.nodes < real:
            raise errors.usage(
                "--nodes", asked.nodes, f"is less than the {real} real ones", "give more, or none"
            )
        if asked.folder:
            importlib.import_module("hami_sandbox.cluster").check_folder(asked.folder)
        folder = asked.examples or example.default_folder()
        return session.Settings(
            plan=plan_fleet(asked.node, max(asked.nodes - real, 0)),
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
    """Keep log lines off the terminal; with --keep-logs write them beside the others."""
    try:
        if folder is not None:
            folder.mkdir(parents=True, exist_ok=True)
        path = os.devnull if folder is None else folder / "demo.log"
        stream = Path(path).open("w", encoding="utf-8")  # noqa: SIM115 - lives as long as we do
    except OSError as error:
        raise errors.usage(
            "--keep-logs", str(folder), f"cannot be used ({error.strerror})", "give another folder"
        ) from error
    logs.set_up(level="info", stream=stream, format="text")


def _console() -> Any:
    """Return the console; a file or pipe is as wide as the summary needs."""
    console: Any = importlib.import_module("rich.console")
    terminal = sys.stdout.isatty()
    return console.Console(highlight=False, width=None if terminal else _WIDTH)


_DESCRIPTION = """\
Run a whole cluster on this machine, without Kubernetes, root or GPU, and show what hami does.

hami's own scheduler, webhook, agents and monitors run as they do on a real cluster; Kubernetes and
the GPUs are stand-ins. The examples are run one after the other, and each is checked against its
text. On a terminal the cluster then stays up, for you and kubectl, until Ctrl-C. No process and no
file is left behind."""


_EPILOG = """\
  hami demo                                   the examples on H100, A100, T4 and Hygon Z100
  hami demo --once                            the same, then end: for scripts
  hami demo --node gpu-a=8xH100 --no-examples one node with eight H100, and nothing on it yet
  hami demo --nodes 1000                      with simulated nodes, 1000 in all
  hami demo --example quota --example burst   some examples only

Exit code 0: every example ended as its text says; 1: one did not, or the cluster did not start;
2: wrong usage; 130: ended by Ctrl-C before the examples were through."""


def build_parser(prog: str) -> errors.Parser:
    made = errors.Parser(prog=prog, description=_DESCRIPTION, epilog=_EPILOG)
    made.add_argument(
        "--once", action="store_true", help="end after the summary; so without a terminal, too"
    )
    made.add_argument(
        "--node",
        action="append",
        default=[],
        metavar="NAME=CARDS",
        help="a node and its cards, as gpu-a=8xH100 or gpu-b=4xA100-80GB,2xT4,2xZ100; may be "
        "repeated, up to 8 (default: a small mixed fleet)",
    )
    made.add_argument(
        "--nodes",
        type=int,
        default=0,
        metavar="N",
        help="nodes in all; those beyond the ones above are simulated and start no containers",
    )
    made.add_argument(
        "--example",
        action="append",
        default=[],
        metavar="NAME",
        help="run this one, as 05-quota, quota or 5; may be repeated (default: all)",
    )
    made.add_argument("--no-examples", action="store_true", help="run none")
    made.add_argument(
        "--examples",
        type=Path,
        metavar="DIR",
        help="where they are (default: examples/ beside the sources)",
    )
    made.add_argument(
        "--folder",
        type=Path,
        metavar="DIR",
        help="folder for the cluster's files; must be new or empty, and is removed at the end "
        "(default: a new one below /tmp)",
    )
    made.add_argument(
        "--keep-logs",
        type=Path,
        metavar="DIR",
        help="keep the logs of all programs there",
    )
    return made


#: Small and mixed: every example fits, and three nodes start in seconds on two cores.
NODES = (
    NodePlan(name="gpu-a", cards=(("H100", 2),)),
    NodePlan(name="gpu-b", cards=(("A100-80GB", 2),)),
    NodePlan(name="gpu-c", cards=(("T4", 4),), others=(("Z100", 2),)),
)


def plan_fleet(nodes: Sequence[str], simulated: int) -> Plan:
    """Return the nodes to start; named ones replace the demo's own."""
    made = Plan(nodes=tuple(map(parse_node, nodes)) or NODES, simulated=simulated)
    made.check()
    return made
