"""A card that falls off the bus: its ids leave, nobody else notices, and it comes back."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator

import pytest

from hami.sandbox import gpus
from tests.e2e import pods
from tests.e2e.agent import workloads
from tests.e2e.agent.fixtures import _audited, _told  # noqa: F401 (for every test)
from tests.e2e.agent.installation import AGENT, IDS, LATE, QUARANTINE_S, SPLIT, Agents
from tests.e2e.agent.workloads import MIB
from tests.e2e.auditor import node_annotations
from tests.e2e.fakegpu import nodes as gpu_nodes
from tests.e2e.fakegpu.nodes import GpuNode
from tests.e2e.install.nodes import GPU
from tests.e2e.kubelet_api import checkpoint
from tests.kubeapi.client import Client, Object, wait_for
from tests.kubeapi.paths import nodes as nodes_path

LOST = 79
AIM_S = 5
SOON_S = 60
SHARE = 1000
USE = "nvidia.com/use-gpuuuid"


@pytest.fixture
def node(agents: Agents) -> Iterator[GpuNode]:
    """Give a node whose cards are healed at the end."""
    node = agents.nodes[LATE]
    yield node
    gpus.set_faults(node.path(gpu_nodes.FOLDER), [])
    agents.await_offers(LATE)


def offered(node: GpuNode) -> frozenset[str]:
    """Give the ids that kubelet may hand out or leave with those who have them."""
    found = checkpoint.read(node.path(str(checkpoint.PATH)))
    return frozenset(found.registered.get(GPU, ()))


def on_card(node: GpuNode, name: str, card: str) -> Object:
    main = workloads.container("main", "init", "device 0", "uuid 0", node=node, memory=SHARE)
    return workloads.pod(name, main, node=node, metadata={"annotations": {USE: card}})


def ids_of(node: GpuNode, pod: Object) -> frozenset[str]:
    (entry,) = (
        entry
        for entry in checkpoint.read(node.path(str(checkpoint.PATH))).entries
        if entry.pod_uid == pod["metadata"]["uid"]
    )
    return entry.device_ids


def healthy(client: Client, card: str) -> bool:
    kept = client.get(nodes_path(LATE))["metadata"]["annotations"]
    (found,) = (
        each for each in json.loads(kept[node_annotations.NVIDIA_REGISTER]) if each["id"] == card
    )
    return bool(found.get("health"))


def seconds(what: str, check: Callable[[], bool]) -> float:
    begin = time.monotonic()
    wait_for(what, check, SOON_S, 0.02)
    return time.monotonic() - begin


def test_a_lost_card_leaves_alone_and_comes_back(
    agents: Agents,
    client: Client,
    namespace: str,
    node: GpuNode,
    capsys: pytest.CaptureFixture[str],
) -> None:
    lost, other = node.cards[0].uuid, node.cards[1].uuid
    pods.create(client, namespace, on_card(node, "lost", lost), on_card(node, "other", other))
    running = {name: pods.await_phase(client, namespace, name) for name in ("lost", "other")}
    for name, card in (("lost", lost), ("other", other)):
        assert workloads.answers(client, running[name], "main", 3)[2] == f"ok {card}"
    assert len(offered(node)) == IDS

    folder = node.path(gpu_nodes.FOLDER)
    gpus.set_faults(folder, [f"card {lost} lost"])
    gpus.inject_xid(folder, lost, LOST)
    left = seconds("its ids to leave", lambda: len(offered(node)) == IDS - SPLIT)
    assert not ids_of(node, running["lost"]) & offered(node)
    assert ids_of(node, running["other"]) <= offered(node)
    wait_for("the API to know", lambda: not healthy(client, lost), SOON_S)
    assert healthy(client, other)
    assert agents.metric(LATE, "hami_agent_cards", AGENT, health="unhealthy") == 1

    # The others stay, and new pods come to them.
    said = workloads.ask(agents, running["other"], "init", "device 0", "total 0")
    assert said == ["ok", "ok", f"ok {SHARE * MIB}"]
    pods.create(client, namespace, on_card(node, "new", other))
    pods.await_phase(client, namespace, "new")
    found = pods.await_phase(client, namespace, "other")
    assert [each["restartCount"] for each in found["status"]["containerStatuses"]] == [0]

    gpus.set_faults(folder, [])
    back = seconds("its ids to come back", lambda: len(offered(node)) == IDS)
    wait_for("the API to know", lambda: healthy(client, lost), SOON_S)
    with capsys.disabled():
        print(  # noqa: T201 (for the reader; it decides nothing)
            f"\nXID {LOST}: its ids left after {left:.1f} s (aim {AIM_S}), and were back "
            f"{back:.1f} s after the fault was cleared (quarantine {QUARANTINE_S} s)"
        )
    pods.create(client, namespace, on_card(node, "again", lost))
    pods.await_phase(client, namespace, "again")
