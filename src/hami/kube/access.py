"""Find the API server and make a client of it.

`find` looks where every Kubernetes program looks: the given kubeconfig, then $KUBECONFIG, then the
service account of our pod, then ~/.kube/config. kubelet gives a pod the server's address as
environment, and token and authority as files, which it replaces long before the token ends.
"""

from __future__ import annotations

import os
import pathlib
from typing import Protocol

from hami.kube import credentials, errors, transport
from hami.kube import kubeconfig as kubeconfigs
from hami.kube.client import Client
from hami.kube.errors import AccessError
from hami.kube.transport import Access

FOLDER = "/var/run/secrets/kubernetes.io/serviceaccount"

__all__ = ["Access", "AccessError", "Connection", "client", "find"]


class Connection(Protocol):
    """The settings of a process that concern the API server."""

    @property
    def kubeconfig(self) -> str: ...
    @property
    def kube_timeout(self) -> float: ...
    @property
    def kube_qps(self) -> float: ...
    @property
    def kube_burst(self) -> int: ...


def client(settings: Connection, *, user_agent: str) -> Client:
    """Return a client by a process's settings."""
    return Client(
        find(settings.kubeconfig),
        user_agent=user_agent,
        timeout=settings.kube_timeout,
        qps=settings.kube_qps,
        burst=settings.kube_burst,
    )


def find(kubeconfig: str = "", *, context: str = "") -> Access:
    """Return the access to the API server; raises AccessError with the places that were tried.

    A context is one of the kubeconfig; unnamed, it is the current one.
    """
    if kubeconfig:
        return kubeconfigs.load([kubeconfig], context=context)
    if listed := [path for path in os.environ.get("KUBECONFIG", "").split(os.pathsep) if path]:
        return kubeconfigs.load(listed, context=context, some_may_be_missing=True)
    in_pod = here()
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
        return load()
    raise errors.AccessError(
        "no API server",
        "there is no --kubeconfig, no $KUBECONFIG, no service account of a pod, no ~/.kube/config",
        "name a kubeconfig, or run in a pod with a service account",
    )


def here(folder: str = FOLDER) -> bool:
    """Return whether this process runs in a pod with a service account."""
    return bool(os.environ.get("KUBERNETES_SERVICE_HOST")) and (
        pathlib.Path(folder, "token").exists()
    )


def load(folder: str = FOLDER) -> transport.Access:
    """Return the access of the service account in a folder; raises AccessError without one."""
    host = os.environ.get("KUBERNETES_SERVICE_HOST", "")
    port = os.environ.get("KUBERNETES_SERVICE_PORT", "") or "443"
    if not host or not port.isdecimal():
        raise errors.AccessError(
            "the environment",
            f"KUBERNETES_SERVICE_HOST is {host!r} and KUBERNETES_SERVICE_PORT is {port!r}",
            "run in a pod, or name a kubeconfig",
        )
    token = credentials.File(f"{folder}/token")
    authority = credentials.File(f"{folder}/ca.crt")
    # Read now: a missing file is an error at the start.
    token.text()
    authority.text()
    return transport.Access(
        f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}",
        identities=credentials.FromFiles(token=token),
        authority=authority,
        namespace=_namespace(folder),
        origin=f"service account in {folder}",
    )


def _namespace(folder: str) -> str:
    try:
        return pathlib.Path(folder, "namespace").read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError):
        return ""  # no command depends on it
