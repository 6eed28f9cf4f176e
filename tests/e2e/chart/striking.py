"""Kill containers of the release's pods from outside.

A container's processes are those of its control group, which kubelet names after its id.
"""

from __future__ import annotations

import contextlib
import os
import signal

from tests.e2e.cluster import cgroups
from tests.e2e.cluster.cluster import Cluster
from tests.kubeapi.client import Object


def kill_containers(cluster: Cluster, pod: Object) -> list[int]:
    """Kill every process of the pod's containers at once; give their numbers."""
    node = cgroups.tracker() / cluster.layout.group / pod["spec"]["nodeName"]
    killed: list[int] = []
    for container in pod["status"]["containerStatuses"]:
        _, _, number = container["containerID"].rpartition("/")
        (group,) = node.rglob(f"pod{pod['metadata']['uid']}/{number}")
        for pid in map(int, (group / "cgroup.procs").read_text().split()):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
                killed.append(pid)
    assert killed, f"no process of {pod['metadata']['name']} was found under {node}"
    return killed
