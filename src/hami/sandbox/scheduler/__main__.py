"""python -m hami.sandbox.scheduler --config FILE: schedule until told to stop."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import uvloop

from hami.kube.errors import AccessError
from hami.sandbox.errors import SandboxError
from hami.sandbox.scheduler import configuration, process
from hami.serving import logs


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m hami.sandbox.scheduler", description=__doc__)
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
        uvloop.run(process.run(configuration.load(asked.config)))
    except (SandboxError, AccessError) as error:
        sys.stderr.write(f"{parser.prog}: {error}\n")
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
