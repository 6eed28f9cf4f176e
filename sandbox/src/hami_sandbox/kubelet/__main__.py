"""python -m hami_sandbox.kubelet: a stand-in for kubelet on one node."""

from __future__ import annotations

import sys

import uvloop

from hami.kube.errors import KubeError
from hami.serving import logs
from hami_sandbox.errors import SandboxError
from hami_sandbox.kubelet.main import parse_settings, run


def main() -> int:
    try:
        settings = parse_settings(sys.argv[1:])
        logs.set_up(level="debug" if settings.debug else "info")
        uvloop.run(run(settings))
    except (SandboxError, KubeError) as error:
        print(f"kubelet stand-in: {error}", file=sys.stderr)  # noqa: T201 - before the log, or its last line
        return 1
    return 0


sys.exit(main())
