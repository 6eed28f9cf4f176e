"""Nodes with GPUs: the agent's annotations, planted through `hami.wire`.

A real node gets its device ids from the bare plugin, a simulated one has them in its status. With
the mark of late binding the scheduler takes no lock; without it the node is one of HAMi's.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import sys
from collections.abc import Iterator, Sequence

from hami.vendors import table
from hami.wire import node_marks, node_register
from hami.wire.node_register import RegisteredCard
from tests.e2e.bare_plugin.binding import TOKENS
from tests.e2e.cluster import fleet
from tests.e2e.cluster.cluster import Cluster
from tests.kubeapi.client import ApiError, Client, Object, wait_for
from tests.kubeapi.paths import leases, nodes

NVIDIA = table.nvidia(table.built_in())
GPU, MEMORY, PERCENT, CORES = (
    NVIDIA.resources.count,
    NVIDIA.resources.memory,
    NVIDIA.resources.memory_percentage,
    NVIDIA.resources.cores,
)
KEYS = NVIDIA.annotations
LEASES = "kube-node-lease"
TTL = "node.alpha.kubernetes.io/ttl"
TTLS = ((100, "0"), (500, "15"), (1000, "30"), (2000, "60"))
OS_LABEL = {"beta.kubernetes.io/os": "linux"}
WRITERS = 8
OFFERED_S = 60
SWEPT_S = 60


def cards(node: str, number: int, *, count: int = 10, memory: int = 8000) -> list[RegisteredCard]:
    """Describe healthy cards whose ids no other node has; `count` containers may share one."""
    return [
        RegisteredCard(
            id=f"GPU-{node}-{index}",
            index=index,
            count=count,
            devmem=memory,
            devcore=100,
            type="NVIDIA A100-SXM4-40GB",
            mode="hami-core",
            health=True,
        )
        for index in range(number)
    ]


def told(devices: Sequence[RegisteredCard], *, late: bool = True) -> dict[str, str | None]:
    """Give the annotations by which an agent tells of its cards."""
    register = node_register.encode_json(devices)
    return {
        KEYS.register: register,
        KEYS.binding: node_marks.late_binding_mark(register) if late else None,
    }


def annotate(client: Client, node: str, values: dict[str, str | None]) -> None:
    client.patch(nodes(node), {"metadata": {"annotations": values}})


def forget(client: Client, node: str) -> None:
    """Take away all that the scheduler and we wrote on a real node."""
    found = client.get(nodes(node))["metadata"].get("annotations", {})
    ours: dict[str, str | None] = {
        key: None for key in found if key.startswith(("hami.io/", "hami.test/"))
    }
    annotate(client, node, ours)


@contextlib.contextmanager
def simulated(
    cluster: Cluster,
    number: int,
    *,
    cards_each: int = 1,
    count: int = 10,
    memory: int = 8000,
    late: bool = True,
) -> Iterator[list[str]]:
    """Add simulated nodes, each with cards of its own, and take them away afterwards.

    A new node is closed as not ready, lacks a label and has another annotation than its number
    asks for. The controllers mend that at five to twenty nodes a second; we do it at once, so that
    a test begins on a cluster at rest.
    """
    ids = {GPU: str(cards_each * count)}

    def register(name: str) -> None:
        devices = cards(name, cards_each, count=count, memory=memory)
        written = told(devices, late=late) | {TTL: _ttl(number)}
        meta = {"annotations": written, "labels": OS_LABEL}
        client.patch(nodes(name), {"metadata": meta, "spec": {"taints": [fleet.TAINT]}})

    try:
        names = fleet.add(cluster, number, capacity=fleet.CAPACITY | ids, say=lambda _: None)
        with (
            cluster.joined_network(),
            cluster.client as client,
            concurrent.futures.ThreadPoolExecutor(WRITERS) as pool,
        ):
            list(pool.map(register, names))
        yield names
    finally:
        fleet.remove(cluster)
        _remove_leases(cluster)


def _ttl(number: int) -> str:
    """Give the annotation that the controller wants on each node of a cluster of that size."""
    return next((ttl for most, ttl in TTLS if number < most), "300")


def _remove_leases(cluster: Cluster) -> None:
    """Remove what is left of simulated nodes: the next ones of the same names need new leases.

    The garbage collector would do it, but slowly, and would take new leases for old ones.
    """

    def remove(name: str) -> None:
        with contextlib.suppress(ApiError):  # the collector was faster
            client.delete(leases(LEASES, name))

    with cluster.joined_network(), cluster.client as client:
        real = {node.name for node in cluster.layout.nodes}
        names = {lease["metadata"]["name"] for lease in client.get(leases(LEASES))["items"]}
        with concurrent.futures.ThreadPoolExecutor(WRITERS) as pool:
            list(pool.map(remove, names - real))


@contextlib.contextmanager
def real(
    cluster: Cluster, node: str, number: int, *, count: int = 10, memory: int = 8000
) -> Iterator[list[RegisteredCard]]:
    """Give a real node cards: the bare plugin offers the ids, the annotations say what they are."""
    machine = cluster.machine(node)
    ids = number * count
    machine.start_beside(
        "gpu-plugin",
        [
            *(sys.executable, "-m", "tests.e2e.bare_plugin", "--node", node),
            *("--node-root", str(machine.root), "--kubeconfig", str(cluster.layout.kubeconfig)),
            *("--resource", GPU, "--devices", str(ids)),
        ],
    )
    devices = cards(node, number, count=count, memory=memory)
    try:
        with cluster.joined_network(), cluster.client as client:
            _await_ids(client, node, ids)
            annotate(client, node, told(devices))
        yield devices
        tokens = machine.root / str(TOKENS).lstrip("/")
        wait_for("the tokens to be swept", lambda: not list(tokens.iterdir()), SWEPT_S)
    finally:
        machine.end("gpu-plugin")
        with cluster.joined_network(), cluster.client as client:
            forget(client, node)


def _await_ids(client: Client, node: str, number: int) -> None:
    def offered() -> bool:
        allocatable: Object = client.get(nodes(node))["status"]["allocatable"]
        return str(allocatable.get(GPU, 0)) == str(number)

    wait_for(f"{node} to offer {number} of {GPU}", offered, OFFERED_S)


def limits(gpus: int = 1, *, memory: int = 0, percent: int = 0, cores: int = 0) -> Object:
    """Describe what a container asks for, as the rest of a container's description."""
    asked = {GPU: gpus, MEMORY: memory, PERCENT: percent, CORES: cores}
    return {"resources": {"limits": {key: str(value) for key, value in asked.items() if value}}}
