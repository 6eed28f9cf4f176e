"""python -m hami_sandbox.kube_scheduler --config FILE: schedule until SIGTERM."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import uvloop

from hami.kube.errors import AccessError
from hami.serving import logs
from hami_sandbox.errors import SandboxError
from hami_sandbox.kube_scheduler import configuration
from hami_sandbox.kube_scheduler import main as kube_scheduler_main


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m hami_sandbox.kube_scheduler", description=__doc__
    )
    parser.add_argument(
        "--config",
        type=Path,
        required=True,
        metavar="FILE",
        help="a KubeSchedulerConfiguration, as `hami scheduler config` writes it",
    )
    parser.add_argument("--log-level", default="info", choices=("debug", "info", "warning"))
    asked = parser.parse_args(arguments)
    logs.set_up(level=asked.log_level)
    try:
        uvloop.run(kube_scheduler_main.run(configuration.load(asked.config)))
    except (SandboxError, AccessError) as error:
        sys.stderr.write(f"{parser.prog}: {error}\n")
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
