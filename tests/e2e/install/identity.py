"""The scheduler's account at the API server, and its keys for grants.

`hami` has a service account of its own with no more rights than it needs: the tests prove that they
suffice, and the audit log tells its requests from everybody else's. kube-scheduler stays who it
always is, and gets the one right that its own role lacks: our lease.
"""

from __future__ import annotations

import dataclasses
import secrets
from pathlib import Path

from tests.e2e.cluster.cluster import Cluster
from tests.kubeapi import access
from tests.kubeapi.client import ApiError, Client, Object
from tests.kubeapi.paths import core, group

NAMESPACE = "kube-system"
ACCOUNT = "hami-scheduler"
#: Cluster-wide, so not the chart's: Helm takes over nothing that is there already.
CLUSTER_ROLE = f"test-{ACCOUNT}"
USER = f"system:serviceaccount:{NAMESPACE}:{ACCOUNT}"
LEASE = "hami-scheduler"
TOKEN_S = 24 * 3600
KEY_BYTES = 32
RBAC = "rbac.authorization.k8s.io"

_READ = ["get", "list", "watch"]
RULES: list[Object] = [
    {"apiGroups": [""], "resources": ["nodes", "pods"], "verbs": [*_READ, "patch"]},
    {"apiGroups": [""], "resources": ["pods/binding"], "verbs": ["create"]},
    {"apiGroups": [""], "resources": ["resourcequotas"], "verbs": _READ},
    {"apiGroups": [""], "resources": ["events"], "verbs": ["create", "patch"]},
    {"apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "verbs": _READ},
]
LEASE_RULES: list[Object] = [
    {
        "apiGroups": ["coordination.k8s.io"],
        "resources": ["leases"],
        "resourceNames": [LEASE],
        "verbs": ["get", "update"],
    }
]


def grant(client: Client) -> None:
    """Make account, roles and bindings; what is there already stays."""
    meta = {"name": ACCOUNT}
    _create(client, core("serviceaccounts", NAMESPACE), {"metadata": meta})
    wide = {"name": CLUSTER_ROLE}
    _create(client, group(f"{RBAC}/v1", "clusterroles"), {"metadata": wide, "rules": RULES})
    account = {"kind": "ServiceAccount", "name": ACCOUNT, "namespace": NAMESPACE}
    _create(
        client,
        group(f"{RBAC}/v1", "clusterrolebindings"),
        {
            "metadata": wide,
            "roleRef": _role("ClusterRole", CLUSTER_ROLE),
            "subjects": [account],
        },
    )
    _create(
        client, group(f"{RBAC}/v1", "roles", NAMESPACE), {"metadata": meta, "rules": LEASE_RULES}
    )
    scheduler = {"kind": "User", "name": "system:kube-scheduler", "apiGroup": RBAC}
    _create(
        client,
        group(f"{RBAC}/v1", "rolebindings", NAMESPACE),
        {"metadata": meta, "roleRef": _role("Role", ACCOUNT), "subjects": [scheduler]},
    )


def write_kubeconfig(client: Client, path: Path) -> None:
    """Write a kubeconfig with a fresh token of the scheduler's account."""
    wanted = {"spec": {"expirationSeconds": TOKEN_S}}
    made = client.create(core("serviceaccounts", NAMESPACE, ACCOUNT, "token"), wanted)
    token = made["status"]["token"]
    path.parent.mkdir(parents=True, exist_ok=True)
    access.write(dataclasses.replace(client.access, token=token, certificate=None, key=None), path)


def write_open_kubeconfig(path: Path, server: str) -> None:
    """Write one without credentials: the proxy before the server has them."""
    access.write(access.Access(server), path)


def key_folder(cluster: Cluster) -> Path:
    """Give the folder of the cluster's grant keys; they are made at the first use."""
    folder = cluster.layout.folder / "grant-keys"
    if not folder.exists():
        new = folder.with_suffix(".new")
        new.mkdir(exist_ok=True)
        for name in ("current", "previous"):
            (new / name).write_bytes(secrets.token_bytes(KEY_BYTES))
        new.rename(folder)
    return folder


def keys(cluster: Cluster) -> tuple[bytes, ...]:
    return tuple((key_folder(cluster) / name).read_bytes() for name in ("current", "previous"))


def _role(kind: str, name: str) -> Object:
    return {"apiGroup": RBAC, "kind": kind, "name": name}


def _create(client: Client, path: str, body: Object) -> None:
    try:
        client.create(path, body)
    except ApiError as error:
        if error.reason != "AlreadyExists":
            raise
