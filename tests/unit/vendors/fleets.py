"""Nodes and pods of every vendor, and what a decision about them records."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hami.cluster.state import Cluster
from hami.placement import decide, request
from hami.placement.decide import Decision
from hami.scheduler import binding
from hami.vendors import table
from hami.wire import codec, objects
from tests import builders

NOW = 1_700_000_000.123456


def vendor(name: str) -> table.Vendor:
    (found,) = (each for each in table.built_in() if each.name == name)
    return found


def node(
    name: str, capacity: Mapping[str, Any] | None = None, /, **annotations: str
) -> objects.Node:
    """Make a node; its kubelet offers all of its capacity."""
    document = {
        "metadata": {"name": name, "annotations": annotations},
        "status": {"allocatable": capacity or {}, "capacity": capacity or {}},
    }
    return codec.decode(codec.encode(document), objects.Node, what="node")


def container(name: str = "main", /, **limits: objects.Amount) -> dict[str, Any]:
    return {"name": name, "resources": {"limits": limits}}


def cluster_of(*nodes: objects.Node, pods: tuple[objects.Pod, ...] = ()) -> Cluster:
    cluster = Cluster(table.built_in())
    for each in nodes:
        cluster.observe_node(each)
    for pod in pods:
        cluster.observe_pod(pod)
    return cluster


def ask(cluster: Cluster, pod: objects.Pod) -> Decision:
    wanted = request.parse(pod, cluster.families, request.Defaults())
    assert wanted is not None
    return decide.decide(cluster, wanted)


def refusal(cluster: Cluster, pod: objects.Pod) -> str:
    decision = ask(cluster, pod)
    assert decision.winner is None
    (text,) = decision.explanation.failed_nodes().values()
    return text


def written(cluster: Cluster, pod: objects.Pod) -> dict[str, str]:
    """Return what the Binding of a pod that fits would write for plugins."""
    wanted = request.parse(pod, cluster.families, request.Defaults())
    assert wanted is not None
    decision = decide.decide(cluster, wanted)
    assert decision.winner is not None, decision.explanation.failed_nodes()
    info = decide.reservation(wanted, decision.winner)
    recorded = binding.decision_annotations(
        info,
        cluster.families,
        containers=tuple(each.name for each in wanted.containers),
        node=cluster.nodes[info.node],
        now=NOW,
        keys=None,
        reads="",
    )
    common = ("hami.io/vgpu-node", "hami.io/vgpu-time", "hami.io/bind-phase", "hami.io/bind-time")
    return {key: value for key, value in recorded.items() if key not in common}


def bound(cluster: Cluster, uid: str, *containers: Mapping[str, Any], **more: Any) -> objects.Pod:
    """Return a pod as the API server has it once it is bound where it fits best."""
    pod = builders.pod(uid, *containers, **more)
    found = written(cluster, pod)
    winner = ask(cluster, pod).winner
    assert winner is not None
    return builders.pod(
        uid,
        *containers,
        **{**more, "annotations": {**more.get("annotations", {}), **found}},
        node_name=winner.node,
    )


def held(cluster: Cluster, node_name: str) -> dict[str, tuple[int, int, int]]:
    """Return (shares, MiB, cores) in use of each card of a node."""
    located = cluster.locate(node_name)
    assert located is not None
    card_table, row = located
    found = {}
    for name, cards in cluster.nodes[node_name].cards.items():
        columns = card_table.cards[name]
        for at, card in enumerate(cards):
            found[card.id] = (
                int(columns.used[at, row]),
                card.devmem - int(columns.memory_left[at, row]),
                card.devcore - int(columns.cores_left[at, row]),
            )
    return found
