"""The fleet as an API server sends it: whole objects, of real size.

`benchmarks.fleet` makes of each object only what the decision core reads. A process is sent much
more than that: pods of 5 kB, most of it of no interest. A hundred thousand of them are not kept:
one text has holes, and each pod fills them when it is sent.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from benchmarks import fleet
from hami.wire import annotation_keys, codec, node_marks, objects, shares, signature

NAMESPACE = "bench"
#: Signs the grants of all placed pods.
KEY = b"k" * signature.KEY_BYTES
CREATED = "2026-01-01T00:00:00Z"
_RESOURCES = fleet.NVIDIA.resources
_ANNOTATIONS = fleet.NVIDIA.annotations
#: Liveness, as HAMi's scheduler left it long ago: nothing to answer.
_HANDSHAKE = "Requesting_2026-01-01 00:00:00"
_HOLES = ("name", "uid", "version", "node", "annotations", "limits", "phase")

Share = Mapping[str, int]


class Placed(msgspec.Struct, frozen=True, gc=False):
    """What tells one placed pod from another."""

    name: str
    uid: str
    node: str
    annotations: bytes
    limits: bytes


def uid(number: int, kind: int = 0) -> str:
    """Return one that is as long as real ones are."""
    return f"{number:08x}-{kind:04x}-4000-8000-000000000000"


def nodes(number: int) -> Iterator[bytes]:
    for version, node in enumerate(fleet.nodes(number), start=1):
        register = node.annotation(_ANNOTATIONS.register)
        yield codec.encode(_node(node.name, register, version))


def placed_pods(number: int, on_nodes: int) -> Iterator[Placed]:
    """Yield the pods of `fleet.placed_pods`, without making API objects of them first."""
    grant_keys = signature.GrantKeys(KEY)
    for at in range(number):
        number_of_node, share = fleet.placed_share(at, on_nodes)
        node, devices = fleet.node_name(number_of_node), shares.encode([[share]])
        keys = {
            annotation_keys.ASSIGNED_NODE: node,
            _ANNOTATIONS.allocated: devices,
            annotation_keys.GRANT_MAC: signature.sign(
                grant_keys, uid=uid(at), node=node, devices=devices
            ),
        }
        yield Placed(
            name=f"placed-{at}",
            uid=uid(at),
            node=node,
            annotations=codec.encode(keys),
            limits=_limits_json(share.memory_mib, share.cores),
        )


@functools.cache
def _limits_json(memory: int, cores: int) -> bytes:
    return codec.encode(limits({"gpu": 1, "memory": memory, "cores": cores}))


def placed_json(pod: Placed, version: int) -> bytes:
    return _filled(
        name=pod.name,
        uid=pod.uid,
        version=version,
        node=pod.node,
        annotations=pod.annotations,
        limits=pod.limits,
        phase="Running",
    )


def pod_json(
    name: str,
    uid: str,
    *,
    share: Share,
    node: str = "",
    annotations: Mapping[str, str] | None = None,
    version: int = 1,
) -> bytes:
    """Write a pod, which waits where it has no node."""
    return _filled(
        name=name,
        uid=uid,
        version=version,
        node=node,
        annotations=codec.encode(annotations or {}),
        limits=codec.encode(limits(share)),
        phase="Running" if node else "Pending",
    )


def limits(share: Share) -> dict[str, str]:
    """Turn `{"gpu": 1, "memory": 1000, "cores": 5}` into resources; nothing is a pod without."""
    names = {"gpu": _RESOURCES.count, "memory": _RESOURCES.memory, "cores": _RESOURCES.cores}
    return {names[key]: str(amount) for key, amount in share.items()}


def core_pod(name: str, share: Share) -> objects.Pod:
    """Return the same pod for the reference, which needs no more than the core."""
    return fleet.pod(name, [dict(share)])


def _filled(**values: object) -> bytes:
    texts = {
        key: value if isinstance(value, bytes) else str(value).encode()
        for key, value in values.items()
    }
    return _template() % {key.encode(): text for key, text in texts.items()}


@functools.cache
def _template() -> bytes:
    text = codec.encode(_pod()).replace(b"%", b"%%")
    for hole in _HOLES:
        place = b"%%(%s)b" % hole.encode()
        text = text.replace(b'"@json-%s@"' % hole.encode(), place)
        text = text.replace(b"@%s@" % hole.encode(), place)
    return text


def _node(name: str, register: str, version: int) -> dict[str, Any]:
    conditions = ("MemoryPressure", "DiskPressure", "PIDPressure", "Ready")
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": name,
            "uid": uid(version, kind=1),
            "resourceVersion": str(version),
            "creationTimestamp": CREATED,
            "labels": {
                "kubernetes.io/arch": "amd64",
                "kubernetes.io/hostname": name,
                "kubernetes.io/os": "linux",
                "node.kubernetes.io/instance-type": "8-gpu",
                "topology.kubernetes.io/zone": "zone-a",
                "gpu": "on",
            },
            "annotations": {
                _ANNOTATIONS.register: register,
                _ANNOTATIONS.binding: node_marks.late_binding_mark(register),
                _ANNOTATIONS.handshake: _HANDSHAKE,
                "node.alpha.kubernetes.io/ttl": "0",
            },
            "managedFields": _managed("kubelet", 12),
        },
        "spec": {"podCIDR": "10.0.0.0/24", "providerID": f"bench://{name}"},
        "status": {
            "addresses": [{"type": "Hostname", "address": name}],
            "allocatable": _amounts(),
            "capacity": _amounts(),
            "conditions": [
                {
                    "type": kind,
                    "status": "True" if kind == "Ready" else "False",
                    "lastHeartbeatTime": CREATED,
                    "lastTransitionTime": CREATED,
                    "reason": f"Kubelet{kind}",
                    "message": f"kubelet has reported {kind}",
                }
                for kind in conditions
            ],
            "images": [
                {"names": [f"registry.example/app-{at}@sha256:{at:064x}"], "sizeBytes": 10**9 + at}
                for at in range(20)
            ],
            "nodeInfo": {"kubeletVersion": "v1.36.0", "operatingSystem": "linux"},
        },
    }


def _amounts() -> dict[str, str]:
    count = str(fleet.CARDS * fleet.SPLIT)
    return {"cpu": "128", "memory": "2000Gi", "pods": "250", _RESOURCES.count: count}


def _pod() -> dict[str, Any]:
    """Return the text with holes: what a job's controller makes, and what others add to it."""
    environment = [
        {"name": f"SETTING_{at}", "value": f"a value of some length, as they are, {at}"}
        for at in range(12)
    ]
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": "@name@",
            "generateName": "training-job-",
            "namespace": NAMESPACE,
            "uid": "@uid@",
            "resourceVersion": "@version@",
            "creationTimestamp": CREATED,
            "labels": {
                "app.kubernetes.io/name": "training",
                "app.kubernetes.io/part-of": "benchmark",
                "batch.kubernetes.io/job-name": "training-job",
                "team": "research",
            },
            "annotations": "@json-annotations@",
            "ownerReferences": [
                {
                    "apiVersion": "batch/v1",
                    "kind": "Job",
                    "name": "training-job",
                    "uid": "00000000-0000-4000-8000-000000000000",
                    "controller": True,
                    "blockOwnerDeletion": True,
                }
            ],
            "managedFields": _managed("kube-controller-manager", 20),
        },
        "spec": {
            "volumes": [
                {"name": "data", "persistentVolumeClaim": {"claimName": "training-data"}},
                {"name": "token", "projected": {"defaultMode": 420, "sources": []}},
            ],
            "containers": [
                {
                    "name": "app0",
                    "image": "registry.example/research/training:2026.01",
                    "command": ["python", "-m", "training", "--epochs=100"],
                    "env": environment,
                    "resources": {
                        "limits": "@json-limits@",
                        "requests": {"cpu": "4", "memory": "16Gi"},
                    },
                    "volumeMounts": [
                        {"name": "data", "mountPath": "/data"},
                        {
                            "name": "token",
                            "readOnly": True,
                            "mountPath": "/var/run/secrets/kubernetes.io/serviceaccount",
                        },
                    ],
                    "livenessProbe": {"httpGet": {"path": "/healthz", "port": 8080}},
                    "terminationMessagePath": "/dev/termination-log",
                    "imagePullPolicy": "IfNotPresent",
                }
            ],
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": 30,
            "dnsPolicy": "ClusterFirst",
            "serviceAccountName": "training",
            "nodeName": "@node@",
            "schedulerName": "hami-scheduler",
            "tolerations": [
                {"key": f"node.kubernetes.io/{why}", "operator": "Exists", "effect": "NoExecute"}
                for why in ("not-ready", "unreachable")
            ],
            "priority": 0,
            "enableServiceLinks": True,
        },
        "status": {
            "phase": "@phase@",
            "conditions": [
                {"type": kind, "status": "True", "lastTransitionTime": CREATED}
                for kind in ("Initialized", "Ready", "ContainersReady", "PodScheduled")
            ],
            "qosClass": "Burstable",
        },
    }


def _managed(manager: str, fields: int) -> list[dict[str, Any]]:
    """Return who wrote which field, which is a large part of real objects."""
    owned: dict[str, Any] = {
        f'f:field-number-{at}-of-{manager}{{"name":"v"}}': {".": {}} for at in range(fields)
    }
    return [
        {
            "manager": manager,
            "operation": "Update",
            "apiVersion": "v1",
            "time": CREATED,
            "fieldsType": "FieldsV1",
            "fieldsV1": {"f:metadata": owned, "f:spec": {}},
        }
    ]
