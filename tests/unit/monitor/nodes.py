"""A node's folders as agent and containers leave them, with locked state files.

A slot lives while its lock is held; OFD locks belong to an open file, so a test holds them itself.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import struct
import uuid
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import cast

import prometheus_client
from prometheus_client import parser

from hami.kube.client import Client
from hami.monitor.containers import Unreadable
from hami.monitor.pods import Pods, WatchedPod, read
from hami.node import ledger_record as records
from hami.node.layout import NodeLayout
from hami.node.ledger_record import AllocationRecord, ContainerRecord, LedgerRecord
from hami.wire import codec, file_layout, policy_file, shares, state_file
from hami.wire.objects import ContainerKind
from hami.wire.shares import Share

GIB, MIB = 1 << 30, 1 << 20
CARD = "GPU-00000000-0000-4000-8000-000000000001"
OTHER = "GPU-00000000-0000-4000-8000-000000000002"
#: struct flock.
_FLOCK = struct.Struct("@hhqqi0q")


def layout(folder: Path) -> NodeLayout:
    made = NodeLayout(hook_path=folder / "hook", state_dir=folder / "lib", run_dir=folder / "run")
    for each in (made.allocations, made.ledger, made.states, made.hami_containers):
        each.mkdir(parents=True)
    return made


def uid_of(name: str) -> str:
    return str(uuid.uuid5(uuid.NAMESPACE_OID, name))


def allocation_of(name: str) -> str:
    return uuid.uuid5(uuid.NAMESPACE_DNS, name).hex


def record(
    name: str,
    grants: Sequence[Share],
    *,
    container: str = "main",
    exempt: bool = False,
    allocation_ids: Sequence[str] | None = None,
) -> LedgerRecord:
    """Make a pod `name` of namespace `team`, with one container that has these grants."""
    given = [allocation_of(name)] if allocation_ids is None else allocation_ids
    return LedgerRecord(
        uid=uid_of(name),
        namespace="team",
        name=name,
        devices=shares.encode([grants]),
        containers=(ContainerRecord(name=container, kind=ContainerKind.APP, exempt=exempt),),
        allocations=tuple(
            AllocationRecord(allocation_id=each, container=container, container_index=0)
            for each in given
        ),
        created=1.0,
    )


def write_record(node: NodeLayout, made: LedgerRecord) -> None:
    node.record(made.uid).write_bytes(records.encode(made))


def write_policy(
    node: NodeLayout,
    name: str,
    limits: Mapping[str, int],
    *,
    container: str = "main",
    cores: int = 0,
    allocation_id: str = "",
) -> Path:
    path = node.policy(allocation_id or allocation_of(name))
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(
        policy_file.encode(
            policy_file.Policy(
                generation=1,
                shares=tuple(
                    Share.from_limits(card, memory_bytes=limit, cores=cores)
                    for card, limit in limits.items()
                ),
                pod_uid=uid_of(name),
                pod_namespace="team",
                pod_name=name,
                container=container,
            )
        )
    )
    return path


def prepare(
    node: NodeLayout,
    name: str,
    limits: Mapping[str, int],
    *,
    container: str = "main",
    cores: int = 0,
) -> Path:
    """Leave what the agent leaves of a container with limits; return its (empty) state file."""
    grants = [
        Share(card=card, vendor="NVIDIA", memory_mib=limit // MIB, cores=cores)
        for card, limit in limits.items()
    ]
    write_record(node, record(name, grants, container=container))
    write_policy(node, name, limits, container=container, cores=cores)
    state = node.state(allocation_of(name))
    state.parent.mkdir(parents=True)
    state.touch()
    return state


def share(card: str, limit: int, cores: int = 0) -> Share:
    """Make a share of so many bytes."""
    return Share.from_limits(card, memory_bytes=limit, cores=cores)


def usage(**fields: int) -> bytes:
    return file_layout.PROCESS_USAGE.pack(**fields)


def entry(pid: int, *usages: bytes, **fields: int) -> bytes:
    return file_layout.PROCESS_ENTRY.pack(pid=pid, usage=b"".join(usages), status=1, **fields)


def state(cards: Sequence[str], *entries: bytes, **fields: int) -> bytes:
    made: dict[str, int] = {"device_count": len(cards), "slots_used": len(entries), **fields}
    return file_layout.STATE.pack(
        magic=file_layout.STATE_MAGIC,
        version=file_layout.STATE_VERSION,
        size=state_file.SIZE,
        devices=b"".join(file_layout.STATE_CARD.pack(uuid=card.encode()) for card in cards),
        slots=b"".join(entries),
        **made,
    )


@contextlib.contextmanager
def held(path: Path, *indexes: int) -> Iterator[None]:
    """Hold the locks of these process entries, as their processes would."""
    handle = os.open(path, os.O_RDWR)
    try:
        for each in indexes:
            lock = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, file_layout.LOCK_BASE + each, 1, 0)
            fcntl.fcntl(handle, fcntl.F_OFD_SETLK, lock)
        yield
    finally:
        os.close(handle)


def unreadable() -> tuple[Unreadable, prometheus_client.Counter]:
    counter = prometheus_client.Counter(
        "hami_monitor_unreadable_regions", "...", ("reason",), registry=None
    )
    return Unreadable(counter), counter


def counts(counter: prometheus_client.Counter) -> dict[str, float]:
    """Give what was counted, by reason."""
    return {
        sample.labels["reason"]: sample.value
        for family in counter.collect()
        for sample in family.samples
        if sample.name.endswith("_total")
    }


def pod(
    name: str,
    *,
    containers: Sequence[str] = ("main",),
    init: Sequence[str] = (),
    ids: Mapping[str, str] | None = None,
    ended: Sequence[str] = (),
    phase: str = "Running",
    annotations: Mapping[str, str] | None = None,
    node: str = "n1",
) -> dict[str, object]:
    """Make a pod's JSON; `ids` are the runtime's ids of containers."""

    def statuses(names: Sequence[str]) -> list[dict[str, object]]:
        return [
            {
                "name": each,
                "containerID": f"containerd://{(ids or {}).get(each, '')}",
                "state": {"terminated": {"exitCode": 0}} if each in ended else {"running": {}},
            }
            for each in names
        ]

    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": "team",
            "uid": uid_of(name),
            "annotations": dict(annotations or {}),
        },
        "spec": {
            "nodeName": node,
            "initContainers": [{"name": each} for each in init],
            "containers": [{"name": each} for each in containers],
        },
        "status": {
            "phase": phase,
            "initContainerStatuses": statuses(init),
            "containerStatuses": statuses(containers),
        },
    }


def hami_pod(name: str, card: str, *, priority: str = "") -> dict[str, object]:
    """Make a pod as HAMi's webhook and scheduler leave it, with all of a card."""
    made = pod(name, annotations={"hami.io/vgpu-devices-allocated": f"{card},NVIDIA,8000,100:;"})
    env = [{"name": "CUDA_TASK_PRIORITY", "value": priority}] if priority else []
    spec = {"nodeName": "n1", "containers": [{"name": "main", "env": env}]}
    return {**made, "spec": spec}


def kept(made: Mapping[str, object]) -> WatchedPod:
    """Return what the monitor keeps of a pod."""
    return read(codec.encode(made))


def pods(*made: Mapping[str, object], synced: bool = True) -> Pods:
    found = Pods(cast("Client", None), node="n1", resync_interval=900)
    if synced:
        found.informer.begin_list()
        found.informer.end_list(1)
    for each in made:
        found.informer.put(kept(each))
    return found


Series = dict[tuple[str, tuple[tuple[str, str], ...]], float]


def series(text: str) -> Series:
    """Read what a scrape shows; the same series twice is an error, as it is for Prometheus."""
    found: Series = {}
    for family in parser.text_string_to_metric_families(text):
        for sample in family.samples:
            labels = tuple(sorted(sample.labels.items()))
            assert (sample.name, labels) not in found, (
                f"{sample.name}{sample.labels} is there twice"
            )
            found[sample.name, labels] = sample.value
    return found


def values(found: Series, name: str, **labels: str) -> list[float]:
    """Give the values of a metric whose labels include these."""
    return [
        value
        for (metric, found_labels), value in found.items()
        if metric == name and labels.items() <= dict(found_labels).items()
    ]
