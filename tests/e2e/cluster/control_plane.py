"""The first machine: etcd, API server, controllers, kube-scheduler and kube-proxy.

Started as in any cluster: RBAC and the node authorizer decide, service accounts have signed tokens,
every write to pods and nodes is in the audit log with its contents, and
metrics are open to whoever may read them.
"""

from __future__ import annotations

import json
from pathlib import Path

from tests.e2e.cluster import certificates, programs, proxy
from tests.e2e.cluster.layout import (
    API_SERVER,
    API_SERVICE_ADDRESS,
    CONTROL_PLANE_ADDRESS,
    POD_RANGE,
    SERVICE_RANGE,
    Layout,
    Scheduler,
)
from tests.e2e.cluster.machines import Machine
from tests.e2e.parts import catalogue

ETC = "/etc/kubernetes"
AUDIT_POLICY = {
    "apiVersion": "audit.k8s.io/v1",
    "kind": "Policy",
    "omitStages": ["RequestReceived"],
    "omitManagedFields": True,
    "rules": [
        {"level": "None", "verbs": ["get", "list", "watch"]},
        {
            "level": "RequestResponse",
            "resources": [
                {"group": "", "resources": ["pods", "pods/*", "nodes"]},
                {"group": "admissionregistration.k8s.io"},
            ],
        },
        {"level": "Metadata"},
    ],
}


def prepare(cluster: Layout) -> certificates.Authority:
    """Make keys and certificates, and lay what the components read into the machine's /etc."""
    secrets = cluster.secrets
    secrets.mkdir(parents=True)
    authority = certificates.new_authority(secrets, "ca")
    front = certificates.new_authority(secrets, "front-proxy-ca")
    certificates.issue(secrets, front, "front-proxy", "front-proxy-client")
    certificates.new_signing_key(secrets, "service-accounts")
    certificates.issue(
        secrets,
        authority,
        "apiserver",
        "kube-apiserver",
        addresses=[
            *("kubernetes", "kubernetes.default", "kubernetes.default.svc", "localhost"),
            *("127.0.0.1", CONTROL_PLANE_ADDRESS, API_SERVICE_ADDRESS),
        ],
    )
    certificates.issue(
        secrets, authority, "kubelet-client", "kube-apiserver-kubelet-client", ["system:masters"]
    )
    for component in ("kube-controller-manager", "kube-scheduler", "kube-proxy"):
        identity = certificates.issue(secrets, authority, component, f"system:{component}")
        certificates.write_kubeconfig(
            secrets / f"{component}.conf", API_SERVER, authority, identity
        )
    admin = certificates.issue(secrets, authority, "admin", "admin", ["system:masters"])
    certificates.write_kubeconfig(cluster.kubeconfig, API_SERVER, authority, admin)
    (secrets / "audit-policy.yaml").write_text(json.dumps(AUDIT_POLICY))
    return authority


def start_api_server(machine: Machine) -> None:
    machine.start(
        "etcd",
        [
            "etcd",
            "--data-dir=/var/lib/etcd",
            "--listen-client-urls=http://127.0.0.1:2379",
            "--advertise-client-urls=http://127.0.0.1:2379",
            "--listen-peer-urls=http://127.0.0.1:2380",
            "--unsafe-no-fsync",  # nothing here outlives the machine
            "--log-level=warn",
        ],
    )
    machine.start(
        "kube-apiserver",
        [
            "kube-apiserver",
            "--etcd-servers=http://127.0.0.1:2379",
            f"--advertise-address={CONTROL_PLANE_ADDRESS}",
            "--secure-port=6443",
            f"--service-cluster-ip-range={SERVICE_RANGE}",
            "--authorization-mode=Node,RBAC",
            "--enable-admission-plugins=NodeRestriction",
            "--allow-privileged=true",
            f"--client-ca-file={ETC}/ca.crt",
            f"--tls-cert-file={ETC}/apiserver.crt",
            f"--tls-private-key-file={ETC}/apiserver.key",
            f"--kubelet-certificate-authority={ETC}/ca.crt",
            f"--kubelet-client-certificate={ETC}/kubelet-client.crt",
            f"--kubelet-client-key={ETC}/kubelet-client.key",
            "--kubelet-preferred-address-types=InternalIP",
            "--service-account-issuer=https://kubernetes.default.svc",
            f"--service-account-key-file={ETC}/service-accounts.key",
            f"--service-account-signing-key-file={ETC}/service-accounts.key",
            f"--requestheader-client-ca-file={ETC}/front-proxy-ca.crt",
            "--requestheader-allowed-names=front-proxy-client",
            "--requestheader-username-headers=X-Remote-User",
            "--requestheader-group-headers=X-Remote-Group",
            "--requestheader-extra-headers-prefix=X-Remote-Extra-",
            f"--proxy-client-cert-file={ETC}/front-proxy.crt",
            f"--proxy-client-key-file={ETC}/front-proxy.key",
            f"--audit-policy-file={ETC}/audit-policy.yaml",
            "--audit-log-path=/var/log/kubernetes/audit.log",
        ],
    )


def start_controllers(machine: Machine) -> None:
    machine.start(
        "kube-controller-manager",
        [
            "kube-controller-manager",
            f"--kubeconfig={ETC}/kube-controller-manager.conf",
            f"--authentication-kubeconfig={ETC}/kube-controller-manager.conf",
            f"--authorization-kubeconfig={ETC}/kube-controller-manager.conf",
            f"--root-ca-file={ETC}/ca.crt",
            f"--service-account-private-key-file={ETC}/service-accounts.key",
            "--use-service-account-credentials=true",
            f"--cluster-cidr={POD_RANGE}",
            "--allocate-node-cidrs=false",  # the harness numbers the ranges: routes depend on them
            "--leader-elect=false",
        ],
    )
    machine.start(
        "kube-scheduler",
        [
            scheduler_program(machine.cluster.scheduler),
            f"--kubeconfig={ETC}/kube-scheduler.conf",
            f"--authentication-kubeconfig={ETC}/kube-scheduler.conf",
            f"--authorization-kubeconfig={ETC}/kube-scheduler.conf",
            "--leader-elect=false",
        ],
    )
    proxy.start(machine, CONTROL_PLANE_ADDRESS)


def scheduler_program(version: Scheduler) -> str:
    if version is Scheduler.OLDEST:
        return f"{programs.inside(catalogue.oldest_kube_scheduler())}/kube-scheduler"
    return "kube-scheduler"


def etc(cluster: Layout) -> dict[str, Path]:
    """Files of the machine's /etc/kubernetes."""
    files = {path.name: path for path in cluster.secrets.iterdir()}
    return files | {"admin.conf": cluster.kubeconfig}
