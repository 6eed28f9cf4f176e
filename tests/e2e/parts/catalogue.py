"""Every part of the test cluster: what it is, which version, how it is made."""

from __future__ import annotations

from pathlib import Path

from hami.image.errors import ImageError
from tests.e2e.parts import cache
from tests.e2e.parts.clean_room import clean_room_root
from tests.e2e.parts.client_tools import client_tools
from tests.e2e.parts.debian_root import debian_root
from tests.e2e.parts.go_module import go_part

__all__ = ["clean_room_root", "client_tools", "debian_root", "every_part", "folder", "provide"]

COMMANDS = "k8s.io/kubernetes/cmd"
CONTAINERD = "github.com/containerd/containerd/v2"
KUBERNETES_STAMPS = (
    "k8s.io/component-base/version.gitVersion={version}",
    "k8s.io/component-base/version.gitMajor={major}",
    "k8s.io/component-base/version.gitMinor={minor}",
)
KUBERNETES_PROGRAMS = (
    "kube-apiserver",
    "kube-controller-manager",
    "kube-scheduler",
    "kubelet",
    "kube-proxy",
)


def kubernetes() -> cache.Part:
    programs = {name: f"{COMMANDS}/{name}" for name in KUBERNETES_PROGRAMS}
    return go_part("kubernetes", "kubernetes", programs, stamps=KUBERNETES_STAMPS, takes="7 min")


def oldest_kube_scheduler() -> cache.Part:
    programs = {"kube-scheduler": f"{COMMANDS}/kube-scheduler"}
    name = "kube_scheduler_oldest"
    return go_part(name, name, programs, stamps=KUBERNETES_STAMPS, takes="2 min")


def etcd() -> cache.Part:
    return go_part("etcd", "etcd", {"etcd": "go.etcd.io/etcd/server/v3"}, takes="1 min")


def containerd() -> cache.Part:
    names = ("containerd", "containerd-shim-runc-v2", "ctr")
    return go_part(
        "containerd",
        "containerd",
        {name: f"{CONTAINERD}/cmd/{name}" for name in names},
        stamps=(f"{CONTAINERD}/version.Version={{version}}",),
        takes="2 min",
    )


def kwok() -> cache.Part:
    return go_part("kwok", "kwok", {"kwok": "sigs.k8s.io/kwok/cmd/kwok"}, takes="1.5 min")


def helm3() -> cache.Part:
    return go_part(
        "helm3",
        "helm3",
        {"helm3": "helm.sh/helm/v3/cmd/helm"},
        stamps=("helm.sh/helm/v3/internal/version.version={version}",),
        takes="1.5 min",
    )


def every_part() -> tuple[cache.Part, ...]:
    """List all of them, those that `up` needs first."""
    return (
        debian_root(),
        etcd(),
        kubernetes(),
        containerd(),
        client_tools(),
        oldest_kube_scheduler(),
        kwok(),
        helm3(),
        clean_room_root(),
    )


def provide(part: cache.Part) -> Path:
    """Give the part's folder, checked, and built first where it is missing."""
    try:
        return cache.provide(part, cache.default_folder())
    except ImageError as error:
        raise cache.PartError(str(error)) from error


def folder(part: cache.Part) -> Path:
    """Give the folder of a part that was provided before; checking it again takes a second."""
    return cache.default_folder() / part.folder_name
