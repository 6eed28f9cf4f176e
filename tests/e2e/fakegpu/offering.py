"""Cards offered without hami, for tests of the driver alone.

kubelet hears of the first card of each node from a plugin, the API of all of them by annotations:
that is how the auditor knows them, and how a scheduler would.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping

from hami.wire.node_register import RegisteredCard
from hami_sandbox.gpu_models import MIB
from tests.e2e.cluster.cluster import Cluster
from tests.e2e.fakegpu import plugin
from tests.e2e.fakegpu.nodes import GpuNode
from tests.e2e.fakegpu.plugin import CardPlugin
from tests.e2e.install import nodes as registering
from tests.kubeapi.client import wait_for
from tests.kubeapi.paths import nodes as nodes_path

OFFERED_S = 60


@contextlib.contextmanager
def offered(cluster: Cluster, nodes: Mapping[str, GpuNode]) -> Iterator[None]:
    """Offer the nodes' cards for as long as the block runs."""
    with contextlib.ExitStack() as stack:
        for node in nodes.values():
            stack.enter_context(_registered(cluster, node))
            card = CardPlugin(node.card.uuid, cdi=node.cdi)
            stack.enter_context(plugin.serving(card, node.machine, registering.GPU))
        _await_offers(cluster, nodes)
        yield


@contextlib.contextmanager
def _registered(cluster: Cluster, node: GpuNode) -> Iterator[None]:
    devices = [
        RegisteredCard(
            id=card.uuid,
            index=index,
            count=plugin.REPLICAS,
            devmem=card.memory // MIB,
            devcore=100,
            type=card.name,
            numa=card.numa,
            mode="hami-core",
            health=True,
        )
        for index, card in enumerate(node.cards)
    ]
    try:
        with cluster.joined_network(), cluster.client as client:
            registering.annotate(client, node.name, registering.told(devices, late=False))
        yield
    finally:
        with cluster.joined_network(), cluster.client as client:
            registering.forget(client, node.name)


def _await_offers(cluster: Cluster, nodes: Mapping[str, GpuNode]) -> None:
    """Wait for all at once: a kubelet writes its node's status every ten seconds."""

    def all_there() -> bool:
        found = {node["metadata"]["name"]: node for node in client.get(nodes_path())["items"]}
        return all(
            str(found[name]["status"]["allocatable"].get(registering.GPU, 0)) == count
            for name in nodes
        )

    count = str(plugin.REPLICAS)
    with cluster.joined_network(), cluster.client as client:
        wait_for("the nodes to offer their cards", all_there, OFFERED_S)
