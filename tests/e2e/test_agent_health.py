"""A failing card and a missing driver: cards leave, stay, and come back."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator

import pytest

from tests.e2e import pods
from tests.e2e.agent import by_hand, node_side, workloads
from tests.e2e.agent.fixtures import _audited, _diagnosed  # noqa: F401 (for every test)
from tests.e2e.agent.installation import IDS, LATE, LOCK, SPLIT, Agents
from tests.e2e.fakegpu import pods as gpu_pods
from tests.e2e.fakegpu.nodes import PLACE, GpuNode
from tests.kubeapi.client import Client, Object, wait_for
from tests.kubeapi.paths import pods as pods_path

MEMORY = 1024
ON_CARD = "nvidia.com/use-gpuuuid"
COMMANDS = ("init", "device 0")
SOON_S = 60
NEW = 3
LIBRARY = "libnvidia-ml.so.1"


def _pod(name: str, node: GpuNode, card: str = "") -> Object:
    """Describe a pod with a share of a card, of this one or of any."""
    described = workloads.container("main", *COMMANDS, node=node, memory=MEMORY)
    wish = {"metadata": {"annotations": {ON_CARD: card}}} if card else {}
    return workloads.pod(name, described, node=node, **wish)


def _decoy(client: Client, namespace: str, node: GpuNode, card: str) -> Object:
    """Let kubelet be advised as if this card were granted next.

    A pod that asks for nothing but carries a grant never comes for it. So the next container gets
    ids that are named after a card which is not its own, as happens to pods that start together.
    """
    made = by_hand.create(client, namespace, pods.pod("decoy"))
    by_hand.bind(client, made, node.name, by_hand.granted(f"{card},NVIDIA,1,0:;"))
    pods.await_phase(client, namespace, "decoy")
    return made


@pytest.mark.parametrize("where", [LATE, LOCK])
def test_a_card_that_fell_off_the_bus_is_left_out_until_it_answers(
    agents: Agents,
    client: Client,
    namespace: str,
    where: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    node = agents.nodes[where]
    bad, good, name_giver = (card.uuid for card in node.cards[:3])
    decoy = _decoy(client, namespace, node, name_giver)
    pods.create(client, namespace, _pod("here", node, bad))
    here = pods.await_phase(client, namespace, "here")
    gpu_pods.remove(client, decoy)
    pods.create(client, namespace, _pod("there", node, good))
    there = pods.await_phase(client, namespace, "there")
    (misnamed,) = node_side.held(node, here)
    assert misnamed.startswith(name_giver)
    before = agents.restarts(where)
    assert len(node_side.registered(node)) == IDS

    with node_side.lost(node, bad):
        begin = time.monotonic()
        ids = wait_for("its ids to leave", lambda: _fewer(node), SOON_S, 0.05)
        left = time.monotonic() - begin
        # As many as the three other cards have shares: who has one of theirs keeps it, the one
        # whose id is only named after one of theirs does not.
        assert len(ids) == IDS - SPLIT
        assert node_side.held(node, there) <= ids
        assert misnamed not in ids
        assert sum(each.startswith(bad) for each in ids) <= 1

        expected = {card.uuid: card.uuid != bad for card in node.cards}
        wait_for(
            "the register to say so",
            lambda: node_side.card_health(client, where) == expected,
            SOON_S,
        )
        wait_for(
            "an event to say so",
            lambda: any(
                bad in text for text in node_side.event_messages(client, where, "GPUUnhealthy")
            ),
            SOON_S,
        )
        assert workloads.ask(agents, there, *COMMANDS, "take alloc a 256m")[2].startswith("ok")

        # Nobody new comes onto it, not even who wants no other.
        pods.create(client, namespace, _pod("waits", node, bad))
        names = [f"new-{number}" for number in range(NEW)]
        pods.create(client, namespace, *(_pod(name, node) for name in names))
        started = [pods.await_phase(client, namespace, name) for name in names]
        cards = {grant.card for pod in started for slot in workloads.slots(pod) for grant in slot}
        assert bad not in cards
        waits = client.get(pods_path(namespace, "waits"))
        assert (waits["status"]["phase"], "nodeName" in waits["spec"]) == ("Pending", False)

    begin = time.monotonic()
    wait_for("its ids to come back", lambda: len(node_side.registered(node)) == IDS, SOON_S, 0.05)
    back = time.monotonic() - begin
    waits = pods.await_phase(client, namespace, "waits")
    assert [grant.card for slot in workloads.slots(waits) for grant in slot] == [bad]
    assert node_side.card_health(client, where) == dict.fromkeys(expected, True)
    assert agents.restarts(where) == before
    assert {node_side.restarts(client, pod) for pod in (here, there, *started)} == {0}
    with capsys.disabled():
        print(  # noqa: T201 (for the reader; it decides nothing)
            f"\n{where}: ids of a lost card left after {left:.1f} s, came back after {back:.1f} s"
        )


def _fewer(node: GpuNode) -> frozenset[str] | None:
    ids = node_side.registered(node)
    return ids if len(ids) < IDS else None


def test_without_a_driver_nothing_is_offered_and_it_is_said_why(
    agents: Agents, client: Client, namespace: str
) -> None:
    names = {where: f"stays-{where}" for where in agents.nodes}
    pods.create(
        client, namespace, *(_pod(name, agents.nodes[where]) for where, name in names.items())
    )
    stays = [pods.await_phase(client, namespace, name) for name in names.values()]
    with contextlib.ExitStack() as stack:
        for node in agents.nodes.values():
            stack.enter_context(_no_library(node))
        since = time.time()
        node_side.renew(agents, *agents.nodes)
        for where, node in agents.nodes.items():
            _await_nothing(client, node)
            words = node_side.why_not_ready(agents, where)
            (line,) = node_side.log_lines(agents, where, "no card is offered")
            told = wait_for("an event to say so", _event(client, where, since), SOON_S)
            assert all(LIBRARY in each for each in (words, line, *told)), (words, line, told)
        # Who has a card does not notice.
        for pod in stays:
            said = workloads.ask(agents, pod, *COMMANDS, "take alloc a 256m")
            assert said[2].startswith("ok")
    agents.await_offers()
    for where, node in agents.nodes.items():
        agents.await_ready(where)
        pods.create(client, namespace, _pod(f"comes-{where}", node))
    for where in agents.nodes:
        pods.await_phase(client, namespace, f"comes-{where}")
    assert [node_side.restarts(client, pod) for pod in stays] == [0, 0]


@contextlib.contextmanager
def _no_library(node: GpuNode) -> Iterator[None]:
    library = node.path(f"{PLACE}/{LIBRARY}")
    away = library.rename(library.with_name("away"))
    try:
        yield
    finally:
        away.rename(library)


def _await_nothing(client: Client, node: GpuNode) -> None:
    """Wait until neither kubelet nor the API has a card of the node."""
    wait_for("nothing to be offered", lambda: not node_side.registered(node), SOON_S)
    wait_for("nothing to be registered", lambda: not _known(client, node), SOON_S)


def _known(client: Client, node: GpuNode) -> dict[str, bool]:
    return node_side.card_health(client, node.name)


def _event(client: Client, node: str, since: float) -> Callable[[], list[str] | None]:
    return lambda: node_side.event_messages(client, node, "GPUDriverMissing", since) or None
