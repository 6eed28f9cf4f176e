"""Finding the API server, where every Kubernetes program looks.

The given kubeconfig, then $KUBECONFIG, then the service account of our pod, then ~/.kube/config.
"""

from __future__ import annotations

import os
import pathlib

from hami.kube import errors, in_cluster
from hami.kube import kubeconfig as kubeconfigs
from hami.kube.errors import AccessError
from hami.kube.reach import Access

__all__ = ["Access", "AccessError", "find"]


def find(kubeconfig: str = "") -> Access:
    """Find the way to the server; `AccessError` says where was looked and what is wrong there."""
    if kubeconfig:
        return kubeconfigs.load([kubeconfig])
    if listed := [path for path in os.environ.get("KUBECONFIG", "").split(os.pathsep) if path]:
        return kubeconfigs.load(listed, some_may_be_missing=True)
    if in_cluster.here():
        return in_cluster.load()
    home = pathlib.Path("~/.kube/config").expanduser()
    if home.exists():
        return kubeconfigs.load([str(home)])
    raise errors.AccessError(
        "no API server",
        "there is no --kubeconfig, no $KUBECONFIG, no service account of a pod, no ~/.kube/config",
        "name a kubeconfig, or run in a pod with a service account",
    )
