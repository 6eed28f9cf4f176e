"""The stand-in driver in real containers: who has which card, and who knows of it.

These are the ways that the node agent's tests build on: a card through the node's NVIDIA CDI spec,
or through image and hostPath where the runtime knows no CDI; the driver's record of containers; and
a reader on the node. A plugin of the tests' own stands for NVIDIA's: nothing of hami is at work.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from hami_sandbox.gpu_models import MIB
from tests.e2e.cluster.cluster import Cluster
from tests.e2e.fakegpu import nodes, offering, pods
from tests.e2e.fakegpu.nodes import GpuNode
from tests.e2e.pods import create
from tests.kubeapi.client import Client, wait_for

CDI, NO_CDI = "node-1", "node-2"
CONTEXT = 258 * MIB
NOTHING_THERE = ["error 100 cuInit", "error 2 nvmlDeviceGetHandleByIndex_v2"]
FREED_S = 30


@pytest.fixture(scope="module")
def gpu_nodes(cluster: Cluster) -> Iterator[Mapping[str, GpuNode]]:
    with nodes.with_driver(cluster) as made:
        yield made


@pytest.fixture(scope="module")
def _offered(cluster: Cluster, gpu_nodes: Mapping[str, GpuNode]) -> Iterator[None]:
    with offering.offered(cluster, gpu_nodes):
        yield


@pytest.mark.usefixtures("_offered")
@pytest.mark.parametrize("where", [CDI, NO_CDI])
def test_a_container_has_one_card_and_the_node_sees_its_process(
    client: Client,
    namespace: str,
    gpu_nodes: Mapping[str, GpuNode],
    where: str,
    tmp_path: Path,
) -> None:
    node = gpu_nodes[where]
    with node.reader(tmp_path / "noise") as reader:
        before = reader.memory()
        assert before.processes == {}
        commands = ("init", "count", "uuid 0", "device 0", "take alloc a 512m")
        body = pods.pod(
            "one",
            pods.container("main", *commands, node=node, memory=4096),
            node=node,
        )
        (pod,) = create(client, namespace, body)
        pods.bind(client, pod, node)
        said = pods.answers(client, pod, "main", len(commands))
        assert said[:4] == ["ok", "ok 1", f"ok {node.card.uuid}", "ok"]
        assert said[4].startswith("ok ")

        taken = CONTEXT + 512 * MIB
        ((pid, counted),) = reader.memory().processes.items()
        assert counted == taken
        assert reader.memory().used == before.used + taken
        name, inner = node.process(pid)
        assert name == "probe"
        assert inner != pid
        owner = f"{pod['metadata']['uid']}/main"
        own = [peak for peak in node.peaks() if peak.owner == owner]
        assert {(peak.card, peak.pid, peak.bytes) for peak in own} == {
            (node.card.uuid, inner, taken),
            (node.card.uuid, 0, taken),
        }

        pods.remove(client, pod)
        wait_for("the card to be free", lambda: reader.memory().used == before.used, FREED_S)
        assert reader.memory().processes == {}


def test_void_shows_no_card(
    client: Client, namespace: str, gpu_nodes: Mapping[str, GpuNode]
) -> None:
    node = gpu_nodes[NO_CDI]
    body = pods.pod("void", pods.blind_container("main", "init", "nvml 0", node=node), node=node)
    (pod,) = create(client, namespace, body)
    pods.bind(client, pod, node)
    assert pods.answers(client, pod, "main", 2) == NOTHING_THERE
    pods.remove(client, pod)
