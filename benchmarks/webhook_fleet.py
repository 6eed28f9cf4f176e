"""Nodes and reviews of `benchmarks.webhook`, of the size that real ones have.

A node of a GPU cluster is some 30 kB long: fifty images with two names each, the labels of feature
discovery, and once more the name of each of them in managedFields. Of all that a webhook wants the
name and a few numbers. A pod as small as they come is a review of 2 kB; with service meshes and
init containers it is 10, and 50 where a whole configuration is in the environment.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import msgspec

from benchmarks import extender_fleet
from hami.wire import codec

#: What every eighth node offers; the other nodes have whole GPUs.
OFFERED = "nvidia.com/mig-1g.10gb"
#: What the pods ask for: no node has it, so it is replaced by what is offered.
MISSING = "nvidia.com/mig-3g.40gb"
PLAIN = ""
#: Bytes of a review, by what we call its pod, and the pod's containers.
SIZES = {"small": (2_000, 1), "medium": (10_000, 3), "large": (50_000, 6)}
_IMAGES = 50
_LABELS = 90
#: In place of a review's uid, as long as one.
_UID = b"00000000-0000-0000-0000-000000000000"


def nodes(number: int) -> Iterator[bytes]:
    for at in range(1, number + 1):
        yield codec.encode(_node(f"node-{at:05}", at))


def _node(name: str, version: int) -> dict[str, Any]:
    labels = {"kubernetes.io/hostname": name, "kubernetes.io/arch": "amd64"} | {
        f"feature.node.kubernetes.io/cpu-cpuid.FEATURE{at}": "true" for at in range(_LABELS)
    }
    conditions = ("MemoryPressure", "DiskPressure", "PIDPressure", "Ready", "NetworkUnavailable")
    return {
        "kind": "Node",
        "apiVersion": "v1",
        "metadata": {
            "name": name,
            "uid": extender_fleet.uid(version, kind=1),
            "resourceVersion": str(version),
            "creationTimestamp": extender_fleet.CREATED,
            "labels": labels,
            "annotations": {
                "node.alpha.kubernetes.io/ttl": "0",
                "nfd.node.kubernetes.io/feature-labels": ",".join(labels),
                "volumes.kubernetes.io/controller-managed-attach-detach": "true",
            },
            "managedFields": [
                _managed("nfd-master", [f"f:{label}" for label in labels]),
                _managed("kubelet", [f"f:field-{at}" for at in range(40)]),
            ],
        },
        "spec": {
            "podCIDR": "10.0.0.0/24",
            "podCIDRs": ["10.0.0.0/24"],
            "providerID": f"b://{name}",
        },
        "status": {
            "capacity": _amounts(version),
            "allocatable": _amounts(version),
            "conditions": [_condition(kind) for kind in conditions],
            "addresses": [{"type": "InternalIP", "address": "10.0.0.1"}],
            "daemonEndpoints": {"kubeletEndpoint": {"Port": 10250}},
            "nodeInfo": {"kubeletVersion": "v1.36.0", "kernelVersion": "6.8.0-generic"},
            "images": [_image(at) for at in range(_IMAGES)],
        },
    }


def _amounts(version: int) -> dict[str, str]:
    gpus = {OFFERED: "56"} if version % 8 == 0 else {"nvidia.com/gpu": "8"}
    return {"cpu": "128", "memory": "2113412120Ki", "pods": "250", **gpus}


def _condition(kind: str) -> dict[str, str]:
    return {
        "type": kind,
        "status": "True" if kind == "Ready" else "False",
        "lastHeartbeatTime": extender_fleet.CREATED,
        "lastTransitionTime": extender_fleet.CREATED,
        "reason": f"Kubelet{kind}",
        "message": f"kubelet reported on {kind}",
    }


def _image(at: int) -> dict[str, Any]:
    name = f"registry.example/some-team/of-a-project/application-{at}"
    return {"names": [f"{name}@sha256:{at:064x}", f"{name}:v1.{at}.0"], "sizeBytes": 10**9 + at}


def _managed(manager: str, fields: list[str]) -> dict[str, Any]:
    return {
        "manager": manager,
        "operation": "Update",
        "apiVersion": "v1",
        "time": extender_fleet.CREATED,
        "fieldsType": "FieldsV1",
        "fieldsV1": {"f:metadata": {"f:labels": {field: {} for field in fields}}},
    }


class Reviews:
    """Reviews of one kind of pod, no two of which have the same uid."""

    def __init__(self, size: str, asked: str) -> None:
        self._begin, hole, self._end = codec.encode(_review(*SIZES[size], asked)).partition(_UID)
        assert hole
        self._numbers = itertools.count()

    def __next__(self) -> bytes:
        uid = extender_fleet.uid(next(self._numbers)).encode()
        return b"%s%s%s" % (self._begin, uid, self._end)


def _review(size: int, containers: int, asked: str) -> dict[str, Any]:
    """Fill up the environment of a pod's containers until its review is so large."""
    environments: list[list[object]] = [[] for _ in range(containers)]
    review = _of(_pod(environments, asked))
    missing = size - len(msgspec.json.encode(review))
    for at, environment in zip(itertools.count(), itertools.cycle(environments)):
        variable = {"name": f"SETTING_{at}", "value": f"a value of some length, as they are, {at}"}
        missing -= len(msgspec.json.encode(variable)) + 1
        if missing < 0:
            return review
        environment.append(variable)
    raise AssertionError


def _of(pod: dict[str, Any]) -> dict[str, Any]:
    kind = {"group": "", "version": "v1", "kind": "Pod"}
    resource = {"group": "", "version": "v1", "resource": "pods"}
    return {
        "kind": "AdmissionReview",
        "apiVersion": "admission.k8s.io/v1",
        "request": {
            "uid": _UID.decode(),
            "kind": kind,
            "resource": resource,
            "requestKind": kind,
            "requestResource": resource,
            "namespace": "bench",
            "operation": "CREATE",
            "userInfo": {
                "username": "system:serviceaccount:kube-system:job-controller",
                "uid": "5ab16dd0-8b5e-4ec3-8b7c-6c4d2b0f2a7e",
                "groups": ["system:serviceaccounts", "system:authenticated"],
            },
            "object": pod,
            "oldObject": None,
            "dryRun": False,
            "options": {"kind": "CreateOptions", "apiVersion": "meta.k8s.io/v1"},
        },
    }


def _pod(environments: list[list[object]], asked: str) -> dict[str, Any]:
    amounts = {asked: "1"} if asked else {}
    containers = [
        {
            "name": f"app{at}",
            "image": "registry.example/research/training:2026.01",
            "env": environment,
            "resources": {"limits": amounts, "requests": {"cpu": "4", **amounts}} if not at else {},
            "volumeMounts": [{"name": "token", "readOnly": True, "mountPath": "/var/run/secrets"}],
            "terminationMessagePath": "/dev/termination-log",
            "terminationMessagePolicy": "File",
            "imagePullPolicy": "IfNotPresent",
        }
        for at, environment in enumerate(environments)
    ]
    return {
        "kind": "Pod",
        "apiVersion": "v1",
        "metadata": {
            "generateName": "training-job-",
            "namespace": "bench",
            "creationTimestamp": None,
            "labels": {"batch.kubernetes.io/job-name": "training-job"},
        },
        "spec": {
            "volumes": [{"name": "token", "projected": {"sources": [], "defaultMode": 420}}],
            "containers": containers,
            "restartPolicy": "Never",
            "serviceAccountName": "training",
            "schedulerName": "default-scheduler",
            "enableServiceLinks": True,
        },
        "status": {},
    }
