"""Short ways to build a cluster by hand and to ask the reference about it.

For the tests named test_reference*.py. Cards are healthy, 8000 MiB, for ten shares, unless a
test asks for others.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hami.wire import annotation_keys as keys
from hami.wire import node_register, objects, shares
from tests.oracle import reference
from tests.oracle.reference_request import Kind
from tests.oracle.sample_vendors import ACME, NVIDIA

Amounts = dict[str, objects.Amount | None]
INIT, SIDECAR, APP = Kind.INIT, Kind.SIDECAR, Kind.APP
Asked = tuple[Kind, Amounts]


def card(name: str, index: int = 0, **changes: Any) -> node_register.RegisteredCard:
    values: dict[str, Any] = {
        "count": 10,
        "devmem": 8000,
        "devcore": 100,
        "type": "NVIDIA A100-SXM4-40GB",
        "mode": "hami-core",
        "health": True,
    }
    return node_register.RegisteredCard(id=name, index=index, **(values | changes))


def node(
    name: str,
    *cards: node_register.RegisteredCard,
    acme: Sequence[node_register.RegisteredCard] = (),
    ids: Mapping[str, objects.Amount | None] | None = None,
    cordon: str | None = None,
) -> objects.Node:
    values: dict[str, str | None] = {NVIDIA.cordon: cordon}
    if cards:
        values[NVIDIA.register] = node_register.encode_json(cards)
    if acme:
        values[ACME.register] = node_register.encode_json(acme)
    allocatable: Amounts = {NVIDIA.count: "100", ACME.count: "100"}
    if ids is not None:
        allocatable = dict(ids)
    return objects.Node(
        metadata=objects.Metadata(name=name, annotations=values),
        status=objects.NodeStatus(allocatable=allocatable),
    )


def gpu(
    count: objects.Amount = 1,
    memory: objects.Amount | None = None,
    cores: objects.Amount | None = None,
    percentage: objects.Amount | None = None,
) -> Amounts:
    return {
        NVIDIA.count: count,
        NVIDIA.memory: memory,
        NVIDIA.cores: cores,
        NVIDIA.percentage: percentage,
    }


def pod(
    *containers: Asked | Amounts,
    uid: str = "incoming",
    on: str | None = None,
    phase: str = "Running",
    init_exit_code: int | None = None,
    **annotations: str,
) -> objects.Pod:
    """Build a pod; containers are apps unless a kind is given; `_` in a key means `-`."""
    inits: list[objects.Container | None] = []
    apps: list[objects.Container | None] = []
    for number, asked in enumerate(containers):
        kind, limits = asked if isinstance(asked, tuple) else (APP, asked)
        container = objects.Container(
            name=f"c{number}",
            resources=objects.Resources(limits=limits),
            restart_policy="Always" if kind is SIDECAR else None,
        )
        (apps if kind is APP else inits).append(container)
    ended = objects.Terminated(exit_code=init_exit_code)
    state = objects.ContainerState(terminated=None if init_exit_code is None else ended)
    return objects.Pod(
        metadata=objects.Metadata(
            name=uid, namespace="team", uid=uid, annotations=named(annotations)
        ),
        spec=objects.PodSpec(node_name=on, containers=apps, init_containers=inits),
        status=objects.PodStatus(
            phase=phase,
            init_container_statuses=[
                objects.ContainerStatus(name=init.name, state=state)
                for init in inits
                if init and init.restart_policy is None
            ],
        ),
    )


def named(annotations: Mapping[str, str]) -> dict[str, str | None]:
    """Turn short names of annotations into their keys."""
    known = {
        "node_policy": keys.NODE_POLICY,
        "gpu_policy": keys.GPU_POLICY,
        "weights": keys.SCORING_WEIGHTS,
    }
    return {known.get(name) or getattr(NVIDIA, name): text for name, text in annotations.items()}


def placed(uid: str, on: str, devices: str, *kinds: Kind, **options: Any) -> objects.Pod:
    """Build a pod that holds `devices`, written as in its annotation."""
    held = shares.decode(devices)
    counts: list[Amounts] = [{NVIDIA.count: len(each)} if each else {} for each in held]
    containers = zip(kinds or [APP] * len(held), counts, strict=True)
    return pod(*containers, uid=uid, on=on, allocated=devices, **options)


def quota(**hard: objects.Amount) -> objects.ResourceQuota:
    limits: Amounts = {f"limits.{getattr(NVIDIA, name)}": amount for name, amount in hard.items()}
    return objects.ResourceQuota(
        metadata=objects.Metadata(name="quota", namespace="team"),
        spec=objects.QuotaSpec(hard=limits),
    )


def ask(
    incoming: objects.Pod,
    *nodes: objects.Node,
    pods: Sequence[objects.Pod] = (),
    quotas: Sequence[objects.ResourceQuota] = (),
    vendors: Sequence[reference.RefVendor] = (NVIDIA,),
    names: Sequence[str] | None = None,
) -> reference.Answer:
    return reference.filter_pod(
        vendors=vendors,
        nodes=list(nodes),
        pods=list(pods),
        quotas=list(quotas),
        pod=incoming,
        names=[node.name for node in nodes] if names is None else list(names),
        node_policy="binpack",
        gpu_policy="spread",
    )


def uuids(answer: reference.Answer) -> list[list[str]]:
    return [[grant.card for grant in each] for each in answer.shares["NVIDIA"]]


# HAMi's own two-node example (Test_Filter), with real model names.

TWO_NODES = (
    node("node1", card("device1"), card("device2", 1)),
    node("node2", card("device3"), card("device4", 1)),
)
TWO_PODS = (
    placed("a", "node1", "device1,NVIDIA,2000,25:;"),
    placed("b", "node2", "device4,NVIDIA,6000,75:;"),
)
