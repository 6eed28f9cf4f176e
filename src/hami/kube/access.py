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


def find(kubeconfig: str = "", *, context: str = "") -> Access:
    """Find the way to the server; `AccessError` says where was looked and what is wrong there.

    A context is one of the kubeconfig; unnamed, it is the current one.
    """
    if kubeconfig:
        return kubeconfigs.load([kubeconfig], context=context)
    if listed := [path for path in os.environ.get("KUBECONFIG", "").split(os.pathsep) if path]:
        return kubeconfigs.load(listed, context=context, some_may_be_missing=True)
    in_pod = in_cluster.here()
    home = pathlib.Path("~/.kube/config").expanduser()
    if not in_pod and home.exists():
        return kubeconfigs.load([str(home)], context=context)
    if context:
        raise errors.AccessError(
            "--context",
            f"{context!r} is in no kubeconfig, as there is none",
            "add --kubeconfig=FILE",
        )
    if in_pod:
        return in_cluster.load()
    raise errors.AccessError(
        "no API server",
        "there is no --kubeconfig, no $KUBECONFIG, no service account of a pod, no ~/.kube/config",
        "name a kubeconfig, or run in a pod with a service account",
    )
