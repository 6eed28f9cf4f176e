"""kube-scheduler's configuration for a replica, as the product writes it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.e2e.cluster import layout
from tests.e2e.install import identity

NAME = "hami-scheduler"


def text(version: layout.Scheduler, *, url: str, kubeconfig: Path, elect: bool = True) -> str:
    return subprocess.run(
        [
            *(sys.executable, "-m", "hami", "scheduler", "config"),
            f"--kube-version={version}",
            f"--url={url}",
            f"--scheduler-name={NAME}",
            f"--kubeconfig={kubeconfig}",
            f"--leader-elect={str(elect).lower()}",
            f"--lease-name={identity.LEASE}",
            f"--lease-namespace={identity.NAMESPACE}",
        ],
        cwd=layout.CHECKOUT,
        stdout=subprocess.PIPE,
        check=True,
        text=True,
    ).stdout
