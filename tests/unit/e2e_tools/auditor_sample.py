"""A small cluster without faults, as evidence that tests can change."""

from __future__ import annotations

import copy
import dataclasses
import json
import struct
import zlib
from collections.abc import Mapping
from typing import Any

from tests.e2e.auditor import node_annotations, pod_annotations, timeline
from tests.e2e.auditor.evidence import Evidence, Held, LedgerFile, Listed, NodeFiles, TokenThing
from tests.e2e.auditor.layouts import BARE, HAMI

KEY = bytes(range(32))
NODE = "node-1"
GPU, MEMORY, PERCENTAGE, CORES = (
    "nvidia.com/gpu",
    "nvidia.com/gpumem",
    "nvidia.com/gpumem-percentage",
    "nvidia.com/gpucores",
)
TRAIN_UID, BARE_UID, MULTI_UID = "uid-train", "uid-bare", "uid-multi"
MIB = 2**20


def card(name: str, **changes: Any) -> dict[str, Any]:
    return {
        "id": name,
        "count": 4,
        "devmem": 8000,
        "devcore": 100,
        "type": "NVIDIA A100-SXM4-40GB",
        "mode": "hami-core",
        "health": True,
        **changes,
    }


def node(
    name: str, *cards: dict[str, Any], annotations: Mapping[str, str] | None = None
) -> dict[str, Any]:
    register = json.dumps(cards)
    own = {
        node_annotations.NVIDIA_REGISTER: register,
        node_annotations.BINDING_MARK: f"late,{node_annotations.hash_of(register)}",
    }
    kept = {**(own if cards else {}), **(annotations or {})}
    metadata = {"name": name, "uid": f"uid-{name}", "annotations": kept}
    return {"kind": "Node", "metadata": metadata}


def container(name: str = "main", limits: Mapping[str, str] | None = None) -> dict[str, Any]:
    return {"name": name, "resources": {"limits": dict(limits or {})}}


def pod(
    uid: str,
    *containers: dict[str, Any],
    devices: str | None = None,
    init: tuple[dict[str, Any], ...] = (),
    where: str | None = NODE,
    phase: str = "Running",
    signed: bool = True,
    annotations: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """Make a pod whose name is its UID without `uid-`; its app containers and sidecars run."""
    kept: dict[str, str] = {}
    if devices is not None:
        kept[pod_annotations.NODE] = where or NODE
        kept[pod_annotations.ALLOCATED] = devices
        if signed and where:
            kept[pod_annotations.MAC] = pod_annotations.mac(
                KEY, uid=uid, node=where, devices=devices
            )
    kept.update(annotations or {})
    running = {"running": {"startedAt": "2026-01-01T00:00:00Z"}}
    ended = {"terminated": {"exitCode": 0}}
    return {
        "kind": "Pod",
        "metadata": {
            "uid": uid,
            "namespace": "team",
            "name": uid.removeprefix("uid-"),
            "annotations": kept,
        },
        "spec": {
            **({"nodeName": where} if where else {}),
            "initContainers": list(init),
            "containers": list(containers) or [container()],
        },
        "status": {
            "phase": phase,
            "initContainerStatuses": [
                {"name": one["name"], "state": running if "restartPolicy" in one else ended}
                for one in init
            ],
            "containerStatuses": [
                {"name": one["name"], "state": running} for one in containers or [container()]
            ],
        },
    }


def grant(name: str, memory: int, cores: int) -> str:
    return f"{name},NVIDIA,{memory},{cores}:"


def spec(kind: str, token: str, **env: str) -> bytes:
    edits = {"env": [f"{name}={value}" for name, value in env.items()]}
    devices = [{"name": token, "containerEdits": edits}]
    return json.dumps({"cdiVersion": "0.5.0", "kind": kind, "devices": devices}).encode()


def policy(
    *cards: tuple[str, int, int],
    uid: str = TRAIN_UID,
    pod: str = "team/train",
    container: str = "main",
    **changes: Any,
) -> bytes:
    """Make a policy file of hami's, field by field; cards are (UUID, bytes, percent)."""
    namespace, _, name = pod.partition("/")
    head = {
        "magic": b"AMIPOLY1",
        "version": 1,
        "size": 3176,
        "generation": 1,
        "flags": 0,
        "count": len(cards),
        "priority": 0,
        "reserved": 0,
        **changes,
    }
    owner = [text.encode() for text in (uid, namespace, name, container)]
    rows = [
        struct.pack("<96s Q Q I 44x", card.encode(), memory, 0, cores)
        for card, memory, cores in cards
    ]
    body = struct.pack("<8s I I Q I I i I 64s 64s 256s 64s", *head.values(), *owner)
    body += b"".join(rows).ljust(16 * 160, b"\0") + bytes(124)
    return body + struct.pack("<I", zlib.crc32(body))


def peak(card: str, owner: str, pid: int, allocated: int, total: int = 8000 * MIB) -> str:
    fields = {"card": card, "owner": owner, "pid": pid, "bytes": allocated, "total": total}
    return json.dumps({"time": 1785320000.25, **fields}) + "\n"


@dataclasses.dataclass
class Draft:
    """Evidence that can still be changed; of node-1 the folders are there as well."""

    nodes: dict[str, dict[str, Any]]
    pods: dict[str, dict[str, Any]]
    checkpoint: list[Held]
    pod_resources: list[Listed]
    folders: dict[str, TokenThing]
    specs: dict[str, TokenThing]
    states: list[TokenThing]
    ledger: list[LedgerFile]
    peaks: str
    timeline: list[str]
    grant_keys: tuple[bytes, ...] = (KEY,)
    quiet: bool = False
    extra: dict[str, Any] = dataclasses.field(default_factory=dict)

    def evidence(self) -> Evidence:
        files = NodeFiles(
            checkpoint=tuple(self.checkpoint),
            pod_resources=tuple(self.pod_resources),
            folders=tuple(self.folders.values()),
            specs=tuple(self.specs.values()),
            states=tuple(self.states),
            ledger=tuple(self.ledger),
            peaks=self.peaks,
            peaks_path="/run/fakegpu/peaks.jsonl",
            **self.extra,
        )
        return Evidence(
            nodes=tuple(self.nodes.values()),
            pods=tuple(self.pods.values()),
            files={NODE: files},
            timeline="".join(self.timeline),
            grant_keys=self.grant_keys,
            quiet=self.quiet,
        )

    def annotations(self, pod_name: str) -> dict[str, str]:
        kept: dict[str, str] = self.pods[pod_name]["metadata"]["annotations"]
        return kept

    def add(self, document: dict[str, Any]) -> None:
        self.pods[document["metadata"]["name"]] = document

    def see(self, kind: str, document: dict[str, Any], time: float = 2.0) -> None:
        """Add to the timeline."""
        self.timeline.append(timeline.line(time, kind, copy.deepcopy(document)))


def held(uid: str, name: str, resource: str, device: str, cdi: str) -> Held:
    return Held(
        pod_uid=uid,
        container=name,
        resource=resource,
        device_ids=frozenset({device}),
        cdi_devices=(cdi,),
    )


def listed(name: str, resource: str, device: str) -> Listed:
    return Listed(
        namespace="team",
        pod=name,
        container="main",
        resource=resource,
        device_ids=frozenset({device}),
    )


def thing(token: str, content: bytes) -> TokenThing:
    """Make a file or folder of a token of hami's; its place means nothing to the checks."""
    return TokenThing(HAMI, token, f"/of/{token}", content)


def clean() -> Draft:
    """Return a cluster on which there is nothing to find."""
    scores = json.dumps([{"uuid": "GPU-0", "score": {"GPU-1": 100}}])
    nodes = [
        node(
            NODE,
            card("GPU-0"),
            card("GPU-1", index=1),
            annotations={
                node_annotations.NVIDIA_SCORE: scores,
                "hami.io/node-handshake": "Requesting_2026-01-01 10:00:00",
                "hami.io/node-handshake-dcu": "Reported whatever",
                "hami.io/node-dcu-register": "DCU-0,4,16384,100,DCU-Z100,0,true,0,hami-core:",
                "hami.io/device-cordon": "GPU-1",
            },
        ),
        node("node-2"),
    ]
    sidecar = {**container("sidecar", limits={GPU: "1"}), "restartPolicy": "Always"}
    pods = [
        pod(
            TRAIN_UID,
            container(limits={GPU: "1", MEMORY: "2000", CORES: "30"}),
            devices=f"{grant('GPU-0', 2000, 30)};",
            annotations={
                "hami.io/bind-phase": "success",
                "hami.io/bind-time": "1785320000",
                "hami.io/vgpu-time": "1785320000",
                pod_annotations.TO_ALLOCATE: ";;",
            },
        ),
        pod(BARE_UID, container(limits={"example.com/vgpu": "1"})),
        pod(
            MULTI_UID,
            container("plain"),
            container("main", limits={GPU: "2", PERCENTAGE: "10"}),
            init=(container("prepare", limits={GPU: "1"}), sidecar),
            devices=(
                f"{grant('GPU-1', 7000, 50)};{grant('GPU-1', 1000, 10)};;"
                f"{grant('GPU-0', 800, 0)}{grant('GPU-1', 800, 0)};"
            ),
        ),
    ]
    bare_policy = {
        "uid": BARE_UID,
        "pod": "team/bare",
        "container": "main",
        "devices": ["vgpu-000"],
    }
    hami_env = {
        "NVIDIA_VISIBLE_DEVICES": "GPU-0",
        "CUDA_DEVICE_MEMORY_LIMIT_0": "2000m",
        "CUDA_DEVICE_SM_LIMIT": "30",
    }
    bare_env = {
        "NVIDIA_VISIBLE_DEVICES": "GPU-vgpu-000",
        "BARE_POD_UID": BARE_UID,
        "BARE_CONTAINER": "main",
    }
    draft = Draft(
        nodes={one["metadata"]["name"]: one for one in nodes},
        pods={one["metadata"]["name"]: one for one in pods},
        checkpoint=[
            held(TRAIN_UID, "main", GPU, "GPU-0-0", "hami.io/vgpu=t1"),
            held(BARE_UID, "main", "example.com/vgpu", "vgpu-000", "bare.hami.io/vgpu=b1"),
            # Of a pod that is gone: kubelet drops it when it next writes.
            held("uid-gone", "main", GPU, "GPU-0-0", "hami.io/vgpu=gone"),
        ],
        pod_resources=[
            listed("train", GPU, "GPU-0-0"),
            listed("bare", "example.com/vgpu", "vgpu-000"),
        ],
        folders={
            "t1": TokenThing(HAMI, "t1", f"{HAMI.tokens}/t1", policy(("GPU-0", 2000 * MIB, 30))),
            "b1": TokenThing(BARE, "b1", f"{BARE.tokens}/b1", json.dumps(bare_policy).encode()),
        },
        specs={
            "t1": TokenThing(
                HAMI,
                "t1",
                "/etc/cdi/hami.io-vgpu-t1.json",
                spec("hami.io/vgpu", "t1", **hami_env),
            ),
            "b1": TokenThing(
                BARE,
                "b1",
                "/etc/cdi/bare.hami.io-vgpu-b1.json",
                spec("bare.hami.io/vgpu", "b1", **bare_env),
            ),
        },
        states=[TokenThing(HAMI, "t1", "/run/hami/state/t1")],
        ledger=[
            LedgerFile(HAMI, "/var/lib/hami/ledger/a", json.dumps({"uid": TRAIN_UID}).encode())
        ],
        peaks=(
            peak("GPU-0", f"{TRAIN_UID}/main", 1, 2000 * MIB)
            + peak("GPU-0", f"{TRAIN_UID}/main", 0, 2000 * MIB)
            + peak("GPU-0", "", 0, 8000 * MIB)
        ),
        timeline=[],
    )
    draft.see("LIST", {"kind": "NodeList", "items": list(draft.nodes.values())}, 1.0)
    draft.see("LIST", {"kind": "PodList", "items": list(draft.pods.values())}, 1.0)
    return draft
