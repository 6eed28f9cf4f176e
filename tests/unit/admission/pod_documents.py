"""Pods for generated tests: from API servers, from people, and malformed ones.

`valid_pods()` are what a real API server accepts, before admission and after it; they carry the
fields that it has filled in, and no status. `written_pods()` are the same before that: limits or
requests alone. `hostile_pods()` have something wrong anywhere. `reviews(pods)` wraps any of them
into the question that the webhook is asked.
"""

from __future__ import annotations

import copy
import itertools
import json
import uuid
from collections.abc import Mapping, Sequence
from typing import Any, cast

from hypothesis import strategies as st
from hypothesis.strategies import DrawFn, SearchStrategy

Document = dict[str, Any]

GPU = "nvidia.com/gpu"
MEMORY = "nvidia.com/gpumem"
PERCENT = "nvidia.com/gpumem-percentage"
CORES = "nvidia.com/gpucores"
PRIORITY = "nvidia.com/priority"
MIG = "nvidia.com/mig-"

#: Those of the built-in chains, and some of no chain.
PROFILES = (
    *("7g.80gb", "4g.40gb", "3g.40gb", "3g.30gb", "2g.20gb", "1g.10gb", "7g.40gb", "1g.5gb"),
    *("7g.141gb", "2g.35gb", "1g.18gb", "1g.10gb.me", "1g.20gb"),
)
VARIABLES: tuple[Document, ...] = (
    {"name": "A", "value": "$(B) \u00fc"},
    {"name": "B"},  # an empty value is left out by API servers
    {"name": "CUDA_VISIBLE_DEVICES", "value": "0"},
    {"name": "C", "valueFrom": {"fieldRef": {"apiVersion": "v1", "fieldPath": "metadata.name"}}},
    {"name": "D", "valueFrom": {"secretKeyRef": {"name": "t", "key": "v", "optional": True}}},
    {"name": "CUDA_TASK_PRIORITY", "value": "1"},
    {"name": "CUDA_TASK_PRIORITY", "value": "2"},
    {"name": "GPU_CORE_UTILIZATION_POLICY", "value": "disable"},
)
ODD_VARIABLES: tuple[Document, ...] = (
    {"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"},
    {"name": "NVIDIA_VISIBLE_DEVICES", "valueFrom": {"configMapKeyRef": {"name": "s", "key": "k"}}},
    {"name": "CUDA_DEVICE_SM_LIMIT", "valueFrom": {"configMapKeyRef": {"name": "s", "key": "k"}}},
    {"name": "CUDA_TASK_PRIORITY", "value": "0"},
    {"name": "CUDA_TASK_PRIORITY", "valueFrom": {"configMapKeyRef": {"name": "s", "key": "k"}}},
)
VOLUMES: dict[str, Document] = {
    "scratch": {"emptyDir": {}},
    "shm": {"emptyDir": {"medium": "Memory", "sizeLimit": "1Gi"}},
    "settings": {"configMap": {"name": "settings", "defaultMode": 420, "optional": True}},
    "host": {"hostPath": {"path": "/data", "type": ""}},
}
MOUNT_PATHS = ("/data", "/etc", "/usr/local", "/dev/shm", "/usr/local/vgpu-data")  # noqa: S108 - in a container
REFUSED_MOUNT_PATHS = ("/etc/ld.so.preload", "/usr/local/vgpu/libvgpu.so", "//usr/local/vgpu")
REMOVED_ANNOTATIONS = ("hami.io/vgpu-devices-allocated", "hami.io/grant-mac", "hami.io/vgpu-node")
ANNOTATIONS: dict[str, tuple[str, ...]] = {
    "team": ("a", "ü \n {}", "x" * 300),
    "example.com/note_1.x": ("", "1"),
    "nvidia.com/use-gputype": ("A100", "H100,A100"),
    "hami.io/gpu-scheduler-policy": ("binpack", "spread", "numa,binpack"),
    "hami.io/device-scoring-weights": ("slot=1,core=2,memory=3", "slot=1"),
    "gpu-webhook.k8s.io/fallback": ("3g.40gb->2g.20gb", "by hand"),
    "hami.io/trace": ("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",),
}
POD_FIELDS: dict[str, tuple[Any, ...]] = {
    "restartPolicy": ("Always", "OnFailure", "Never"),
    "terminationGracePeriodSeconds": (0, 30),
    "activeDeadlineSeconds": (600,),
    "automountServiceAccountToken": (False,),
    "shareProcessNamespace": (True,),
    "hostname": ("worker-0",),
    "nodeSelector": ({"gpu": "on", "kubernetes.io/os": "linux"},),
    "imagePullSecrets": ([{"name": "registry"}],),
    "hostAliases": ([{"ip": "127.0.0.1", "hostnames": ["db.local"]}],),
    "readinessGates": ([{"conditionType": "example.com/ready"}],),
    "tolerations": ([{"key": GPU, "operator": "Exists", "effect": "NoSchedule"}],),
    "affinity": (
        {
            "nodeAffinity": {
                "requiredDuringSchedulingIgnoredDuringExecution": {
                    "nodeSelectorTerms": [
                        {"matchExpressions": [{"key": "gpu", "operator": "In", "values": ["on"]}]}
                    ]
                }
            }
        },
    ),
    "topologySpreadConstraints": (
        [
            {
                "maxSkew": 1,
                "topologyKey": "kubernetes.io/hostname",
                "whenUnsatisfiable": "ScheduleAnyway",
                "labelSelector": {"matchLabels": {"app": "train"}},
            }
        ],
    ),
}
CONTAINER_FIELDS: dict[str, tuple[Any, ...]] = {
    "command": (["python", "-m", "train"], ["/bin/sh", "-c", "exec ~/run /tmp/~1"]),
    "args": (["--epochs=3"],),
    "workingDir": ("/workspace",),
    "stdin": (True,),
    "ports": ([{"name": "http", "containerPort": 8080, "protocol": "TCP"}],),
    "securityContext": (
        {},
        {"runAsUser": 1000, "runAsNonRoot": True, "privileged": False},
        {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
    ),
    "envFrom": ([{"configMapRef": {"name": "settings"}}],),
}
APP_FIELDS: dict[str, tuple[Any, ...]] = {
    "livenessProbe": (
        {
            "exec": {"command": ["true"]},
            "timeoutSeconds": 1,
            "periodSeconds": 10,
            "successThreshold": 1,
            "failureThreshold": 3,
        },
    ),
    "lifecycle": ({"preStop": {"exec": {"command": ["sleep", "1"]}}},),
}


def _weighted(*choices: tuple[int, Sequence[Any]]) -> SearchStrategy[Any]:
    """Choose from sequences, each as often as its number says."""
    return st.sampled_from([one for times, some in choices for one in some for _ in range(times)])


def _some(choices: Mapping[str, Sequence[Any]]) -> SearchStrategy[Document]:
    """Choose up to three of the fields, each with one of its values."""
    pairs = [(key, value) for key, values in choices.items() for value in values]
    chosen = st.lists(st.sampled_from(pairs), max_size=3, unique_by=lambda pair: pair[0])
    return chosen.map(dict)


_SHARES = [
    sizes
    for number in range(4)
    for sizes in itertools.combinations([MEMORY, PERCENT, CORES], number)
]
_COUNTS = st.sampled_from(["1", "1", "1", "2", "4", "0", None])
_AMOUNTS = {
    MEMORY: _weighted((10, ["0", "1", "1000", "8k", "40000"]), (1, ["16Gi"])),
    PERCENT: _weighted((6, ["0", "1", "50", "100"]), (1, ["101"])),
    CORES: st.sampled_from(["0", "1", "30", "100", "150"]),
    PRIORITY: _weighted((1, ["0"]), (4, ["1", "7"])),
}


@st.composite
def _cards(draw: DrawFn) -> dict[str, str]:
    """Return a request for cards: whole ones, shares by anything, none, or too much."""
    sizes = [*draw(_SIZES)]
    count = draw(_COUNTS)
    asked = {size: draw(_AMOUNTS[size]) for size in sizes}
    return asked if count is None and asked else {GPU: count or "1", **asked}


_SIZES = _weighted((4, _SHARES), (1, [(*sizes, PRIORITY) for sizes in _SHARES]))
_PROFILES = st.dictionaries(
    st.sampled_from([f"{MIG}{name}" for name in PROFILES]),
    st.sampled_from(["1", "1", "2", "0"]),
    min_size=1,
    max_size=2,
)
_MIXED = st.builds(lambda cards, profiles: {**cards, **profiles}, _cards(), _PROFILES)
_NOTHING: SearchStrategy[dict[str, str]] = st.just({})
_EXTENDED = st.sampled_from(
    [_NOTHING, _cards(), _cards(), _cards(), _PROFILES, _PROFILES, _MIXED]
).flatmap(lambda chosen: chosen)
_PLAIN = st.sampled_from(
    [{}, {"cpu": "500m", "memory": "1Gi"}, {"rdma.example/hca": "1", "cpu": "2"}]
)
_WRITTEN_PARTS = st.sampled_from([["limits", "requests"], ["limits"], ["requests"]])
_ENV = st.lists(_weighted((8, VARIABLES), (1, ODD_VARIABLES)), max_size=3)
_MOUNTS = st.lists(
    st.tuples(
        _weighted((8, MOUNT_PATHS), (1, REFUSED_MOUNT_PATHS)), st.sampled_from(sorted(VOLUMES))
    ),
    max_size=2,
    unique_by=lambda mount: mount[0],
)
_CONTAINER_FIELDS = _some(CONTAINER_FIELDS)
_APP_FIELDS = st.sampled_from([{}, {}, {}, *({key: v[0]} for key, v in APP_FIELDS.items())])
_PRIVILEGED = _weighted((30, [False]), (1, [True]))


@st.composite
def _containers(draw: DrawFn, name: str, *, filled_in: bool) -> Document:
    parts = ["limits", "requests"] if filled_in else draw(_WRITTEN_PARTS)
    asked = {**draw(_PLAIN), **draw(_EXTENDED)}
    made = {
        "name": name,
        "image": "registry.example/train:1",
        **draw(_CONTAINER_FIELDS),
        "resources": dict.fromkeys(parts, asked) if asked else {},
    }
    if env := draw(_ENV):
        made["env"] = env
    if mounts := draw(_MOUNTS):
        made["volumeMounts"] = [{"name": name, "mountPath": path} for path, name in mounts]
    if draw(_PRIVILEGED):
        made["securityContext"] = {"privileged": True}
    if filled_in:
        made |= {
            "terminationMessagePath": "/dev/termination-log",
            "terminationMessagePolicy": "File",
            "imagePullPolicy": "IfNotPresent",
        }
    return made


_FILLED_IN: Document = {
    "restartPolicy": "Always",
    "dnsPolicy": "ClusterFirst",
    "securityContext": {},
    "terminationGracePeriodSeconds": 30,
    "enableServiceLinks": True,
    "schedulerName": "default-scheduler",
    "serviceAccountName": "default",
    "serviceAccount": "default",
}
_OWNER = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "r", "uid": str(uuid.UUID(int=7))}
_NAMES: SearchStrategy[Document] = st.integers(0, 999).map(
    lambda number: {"name": f"train-{number}"} if number % 3 else {"generateName": "train-"}
)
_POD_ANNOTATIONS = _some(ANNOTATIONS)
_COPIED = dict.fromkeys(REMOVED_ANNOTATIONS, "GPU-1,NVIDIA,1,1:;") | {"hami.io/vgpu-node": "node-1"}
_FORGED = _weighted(
    (30, [{}]), (1, [{key: "GPU-1,NVIDIA,1,1:;"} for key in REMOVED_ANNOTATIONS]), (3, [_COPIED])
)
_LABELS: SearchStrategy[Document] = st.sampled_from(
    [
        *({}, {"labels": {"app": "train", "example.com/part": "a"}}, {"ownerReferences": [_OWNER]}),
        {"labels": {"app": "train", "hami.io/vgpu-node": "node-1"}},
    ]
)
_POD_FIELDS = _some(POD_FIELDS)
_SCHEDULING = _weighted(
    (20, [{}]),
    (2, [{"schedulerName": "hami-scheduler"}, {"schedulerName": "volcano"}]),
    (2, [{"nodeName": "node-1"}]),
)
_APPS = {
    filled_in: [_containers(f"app-{place}", filled_in=filled_in) for place in range(3)]
    for filled_in in (True, False)
}
_INITS = {
    filled_in: [_containers(f"init-{place}", filled_in=filled_in) for place in range(2)]
    for filled_in in (True, False)
}
_SHAPES = st.sampled_from([(1, 0), (1, 0), (1, 0), (2, 0), (1, 1), (2, 1), (1, 2), (3, 2)])
_RESTARTS = st.sampled_from([{}, {"restartPolicy": "Always"}])


@st.composite
def _pods(draw: DrawFn, namespace: str, *, filled_in: bool) -> Document:
    apps, inits = draw(_SHAPES)
    containers = [{**draw(each), **draw(_APP_FIELDS)} for each in _APPS[filled_in][:apps]]
    init_containers = [{**draw(each), **draw(_RESTARTS)} for each in _INITS[filled_in][:inits]]
    spec = {
        **(_FILLED_IN if filled_in else {}),
        **draw(_POD_FIELDS),
        **draw(_SCHEDULING),
        "containers": containers,
    }
    if init_containers:
        spec["initContainers"] = init_containers
    mounts = [
        mount for each in containers + init_containers for mount in each.get("volumeMounts", ())
    ]
    if mounts:
        names = sorted({mount["name"] for mount in mounts})
        spec["volumes"] = [{"name": name, **VOLUMES[name]} for name in names]
    metadata = {"namespace": namespace, **draw(_NAMES), **draw(_LABELS)}
    if annotations := {**draw(_POD_ANNOTATIONS), **draw(_FORGED)}:
        metadata["annotations"] = annotations
    document = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}
    # Nothing in it is shared with another part, or another pod.
    return cast("Document", json.loads(json.dumps(document)))


def valid_pods(namespace: str = "default") -> SearchStrategy[Document]:
    """Return pods that a real API server accepts, with and without what admission changes."""
    return _pods(namespace, filled_in=True)


def written_pods(namespace: str = "default") -> SearchStrategy[Document]:
    """Return pods as people write them; extended resources may be limited or requested only."""
    return _pods(namespace, filled_in=False)


_MISSING = object()
_NASTY_VALUES: tuple[Any, ...] = (
    *(_MISSING, _MISSING, None, None, True, False, 0, 1, 2, -1, 0.5, 1e300, -(2**70)),
    *("", "0", "-1", "1e999", "x" * 5000, "\x00", "~1/~0"),
    *({}, [], [None], {"": None}, {"a/b~c": "d"}, [{}], {"limits": None}),
)
_NASTY: SearchStrategy[Any] = st.sampled_from(_NASTY_VALUES)


def _places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Return the way to everything within a document."""
    found = [path] if path else []
    if isinstance(value, dict):
        children: Any = value.items()
    else:
        children = enumerate(value) if isinstance(value, list) else ()
    for key, child in children:
        found += _places(child, (*path, key))
    return found


@st.composite
def hostile_pods(draw: DrawFn) -> Document:
    """Return pods in which a few values, anywhere, have a wrong type or are missing."""
    document = draw(written_pods())
    for _ in range(draw(st.integers(1, 4))):
        places = _places(document)
        if not places:
            break
        *parents, last = draw(st.sampled_from(places))
        place: Any = document
        for key in parents:
            place = place[key]
        value = draw(_NASTY)
        if value is _MISSING:
            del place[last]
        else:
            place[last] = copy.deepcopy(value)
    return document


@st.composite
def reviews(draw: DrawFn, pods: SearchStrategy[Document]) -> Document:
    """Return the question about a pod, in either version."""
    pod = draw(pods)
    metadata = pod.get("metadata")
    metadata = metadata if isinstance(metadata, dict) else {}
    kind = {"group": "", "version": "v1", "kind": "Pod"}
    resource = {"group": "", "version": "v1", "resource": "pods"}
    return {
        "apiVersion": f"admission.k8s.io/{draw(st.sampled_from(['v1', 'v1beta1']))}",
        "kind": "AdmissionReview",
        "request": {
            "uid": str(uuid.UUID(int=draw(st.integers(0, 2**64)))),
            "kind": kind,
            "resource": resource,
            "requestKind": kind,
            "requestResource": resource,
            "name": metadata.get("name", ""),
            "namespace": "default",
            "operation": "CREATE",
            "userInfo": {"username": "alice", "groups": ["system:authenticated"]},
            "object": {**pod, "status": {}},
            "oldObject": None,
            "dryRun": draw(st.booleans()),
            "options": {"kind": "CreateOptions", "apiVersion": "meta.k8s.io/v1"},
        },
    }
