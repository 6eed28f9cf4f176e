"""The service account of the pod that we run in.

kubelet gives the pod the server's address as environment, and token and authority as files, which
it replaces long before the token ends.
"""

from __future__ import annotations

import os
import pathlib

from hami.kube import errors, files, identity, reach

FOLDER = "/var/run/secrets/kubernetes.io/serviceaccount"


def here(folder: str = FOLDER) -> bool:
    """Return whether this process runs in a pod with a service account."""
    return bool(os.environ.get("KUBERNETES_SERVICE_HOST")) and (
        pathlib.Path(folder, "token").exists()
    )


def load(folder: str = FOLDER) -> reach.Access:
    host = os.environ.get("KUBERNETES_SERVICE_HOST", "")
    port = os.environ.get("KUBERNETES_SERVICE_PORT", "") or "443"
    if not host or not port.isdecimal():
        raise errors.AccessError(
            "the environment",
            f"KUBERNETES_SERVICE_HOST is {host!r} and KUBERNETES_SERVICE_PORT is {port!r}",
            "run in a pod, or name a kubeconfig",
        )
    token = files.File(f"{folder}/token")
    authority = files.File(f"{folder}/ca.crt")
    # Read now, so that what is missing is told at the start.
    token.text()
    authority.text()
    return reach.Access(
        f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}",
        identities=identity.FromFiles(token=token),
        authority=authority,
        namespace=_namespace(folder),
        origin=f"service account in {folder}",
    )


def _namespace(folder: str) -> str:
    try:
        return pathlib.Path(folder, "namespace").read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError):
        return ""  # no command depends on it
