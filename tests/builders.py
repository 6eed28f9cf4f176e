"""Short ways to make the objects that tests need.

They go through JSON, as everything does that really comes from an API server.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hami.cluster.state import Cluster
from hami.placement import decide, request
from hami.vendors import table
from hami.wire import annotation_keys, codec, node_register, objects, shares
from hami.wire.node_register import RegisteredCard
from hami.wire.shares import Share

VENDORS = table.built_in()
NVIDIA = table.nvidia(VENDORS)

GPU, MEMORY, PERCENT, CORES = (
    NVIDIA.resources.count,
    NVIDIA.resources.memory,
    NVIDIA.resources.memory_percentage,
    NVIDIA.resources.cores,
)


def card(name: str, **changes: Any) -> RegisteredCard:
    """Make a healthy 8000 MiB card that ten containers may share."""
    values: dict[str, Any] = {
        "count": 10,
        "devmem": 8000,
        "devcore": 100,
        "type": "NVIDIA A100-SXM4-40GB",
        "mode": "hami-core",
        "health": True,
        **changes,
    }
    return RegisteredCard(id=name, **values)


def cards(prefix: str, number: int, **changes: Any) -> list[RegisteredCard]:
    return [card(f"{prefix}-{index}", index=index, **changes) for index in range(number)]


def node(
    name: str,
    devices: Sequence[RegisteredCard] | str,
    *,
    allocatable: objects.Amount | None = 100,
    **annotations: str,
) -> objects.Node:
    """Make a node; a text instead of cards is the register annotation's value."""
    register = devices if isinstance(devices, str) else node_register.encode_json(devices)
    keys = {NVIDIA.annotations.register: register, **annotations}
    document = {
        "metadata": {"name": name, "annotations": keys},
        "status": {"allocatable": {GPU: allocatable}},
    }
    return codec.decode(codec.encode(document), objects.Node, what="node")


def container(name: str = "main", **amounts: objects.Amount) -> dict[str, Any]:
    """Make a container by `gpu=1, memory=1000, percent=50, cores=30`."""
    names = {"gpu": GPU, "memory": MEMORY, "percent": PERCENT, "cores": CORES}
    return {"name": name, "resources": {"limits": {names[k]: v for k, v in amounts.items()}}}


def sidecar(name: str = "sidecar", **amounts: objects.Amount) -> dict[str, Any]:
    return {**container(name, **amounts), "restartPolicy": "Always"}


def pod(
    uid: str,
    *containers: Mapping[str, Any],
    init: Sequence[Mapping[str, Any]] = (),
    annotations: Mapping[str, str] | None = None,
    node_name: str | None = None,
    phase: str | None = None,
    init_exit_codes: Mapping[str, int] | None = None,
    namespace: str = "default",
) -> objects.Pod:
    """Make a pod whose name is its UID."""
    statuses = [
        {"name": name, "state": {"terminated": {"exitCode": code}}}
        for name, code in (init_exit_codes or {}).items()
    ]
    document = {
        "metadata": {
            "name": uid,
            "uid": uid,
            "namespace": namespace,
            "annotations": dict(annotations or {}),
        },
        "spec": {
            "nodeName": node_name,
            "containers": list(containers),
            "initContainers": list(init),
        },
        "status": {"phase": phase, "initContainerStatuses": statuses},
    }
    return codec.decode(codec.encode(document), objects.Pod, what="pod")


def granted(
    uid: str,
    on: str,
    *given: Sequence[tuple[str, int, int]],
    **more: Any,
) -> objects.Pod:
    """Make a bound pod: a list of (card, memory, cores) per container, init ones first."""
    grants = [[Share(c, NVIDIA.name, memory, cores) for c, memory, cores in each] for each in given]
    init = more.pop("init", ())
    containers = more.pop("containers", None)
    if containers is None:
        containers = [
            container(f"c{at}", **({"gpu": len(each)} if each else {}))
            for at, each in enumerate(given[len(init) :])
        ]
    annotations = {
        annotation_keys.ASSIGNED_NODE: on,
        NVIDIA.annotations.allocated: shares.encode(grants),
        **more.pop("annotations", {}),
    }
    return pod(uid, *containers, init=init, annotations=annotations, node_name=on, **more)


def quota(
    name: str, *, namespace: str = "default", **hard: objects.Amount
) -> objects.ResourceQuota:
    """Make a quota by `memory=2048, cores=100`, or by whole keys."""
    names = {"memory": f"limits.{MEMORY}", "cores": f"limits.{CORES}"}
    document = {
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"hard": {names.get(key, key): amount for key, amount in hard.items()}},
    }
    return codec.decode(codec.encode(document), objects.ResourceQuota, what="quota")


def cluster(
    *observed: objects.Node | objects.Pod | objects.ResourceQuota,
) -> Cluster:
    """Make a cluster that has seen all these."""
    made = Cluster(VENDORS)
    for thing in observed:
        match thing:
            case objects.Node():
                made.observe_node(thing)
            case objects.Pod():
                made.observe_pod(thing)
            case objects.ResourceQuota():
                made.observe_quota(thing)
    return made


def ask(
    in_cluster: Cluster,
    asking: objects.Pod,
    names: decide.Names = None,
    *,
    node_policy: str = "binpack",
    gpu_policy: str = "spread",
) -> decide.Decision:
    """Decide a pod that asks for something."""
    defaults = request.Defaults(node_policy=node_policy, gpu_policy=gpu_policy)
    demand = request.parse(asking, tuple(in_cluster.vendors.values()), defaults)
    assert demand is not None
    return decide.decide(in_cluster, demand, names)


def winner(decision: decide.Decision) -> tuple[str, list[list[str]]] | None:
    """Return the node and the card ids of each container."""
    if decision.winner is None:
        return None
    shares_of = decision.winner.shares[NVIDIA.name]
    return decision.winner.node, [[share.card for share in each] for each in shares_of]


def use(in_cluster: Cluster, on: str, card_id: str) -> tuple[int, int, int]:
    """Return used shares, MiB and percent of a card."""
    located = in_cluster.locate(on)
    assert located is not None
    card_table, row = located
    table_of = card_table.cards[NVIDIA.name]
    column = table_of.column(row, card_id)
    assert column is not None
    at = column, row
    memory = table_of.memory[at] - table_of.memory_left[at]
    return int(table_of.used[at]), int(memory), int(table_of.cores[at] - table_of.cores_left[at])
