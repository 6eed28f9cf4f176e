"""Pods for the scheduler, and the core's decisions on the same objects."""

from __future__ import annotations

import concurrent.futures
import itertools
from collections.abc import Iterable, Sequence
from typing import Any

from hami.cluster.state import Cluster as State
from hami.wire import codec, objects, shares
from tests import builders
from tests.e2e import pods
from tests.e2e.cluster import fleet
from tests.e2e.install import nodes, scheduler_config
from tests.kubeapi.client import Client, Object, wait_for
from tests.kubeapi.paths import nodes as nodes_path
from tests.kubeapi.paths import pods as pods_path

WRITERS = 4
LOOK_S = 0.25


def pod(name: str, asked: Object | None = None, **spec: Any) -> Object:
    """Describe a pod of ours for simulated nodes; `spec` adds to or replaces what it has."""
    usual = {
        "schedulerName": scheduler_config.NAME,
        "container": nodes.limits() if asked is None else asked,
        "nodeSelector": {fleet.MARK: "true"},
        "tolerations": [fleet.TOLERATION],
    }
    return pods.pod(name, **{**usual, **spec})


def create_at_once(client: Client, namespace: str, bodies: Iterable[Object]) -> None:
    with concurrent.futures.ThreadPoolExecutor(WRITERS) as pool:
        list(pool.map(lambda body: client.create(pods_path(namespace), body), bodies))


def await_bound(client: Client, namespace: str, seconds: float) -> list[Object]:
    """Wait until every pod of the namespace has a node; give them."""

    def all_bound() -> bool:
        waiting = client.get(pods_path(namespace), fieldSelector="spec.nodeName=", limit=1)
        return not waiting["items"]

    try:
        wait_for(f"the pods of {namespace} to be bound", all_bound, seconds, LOOK_S)
    except TimeoutError as error:
        left = client.get(pods_path(namespace), fieldSelector="spec.nodeName=")["items"]
        name = left[0]["metadata"]["name"]
        raise AssertionError(
            f"{error}; {len(left)} wait, among them {name}: {pods.why(client, namespace, name)}"
        ) from None
    found: list[Object] = client.get(pods_path(namespace))["items"]
    return found


def await_one_bound(client: Client, namespace: str, name: str, seconds: float) -> Object:
    def bound() -> Object | None:
        found = client.get(pods_path(namespace, name))
        return found if found["spec"].get("nodeName") else None

    try:
        return wait_for(f"pod {name} to be bound", bound, seconds)
    except TimeoutError as error:
        raise AssertionError(f"{error}; {pods.why(client, namespace, name)}") from None


def state(client: Client) -> State:
    """Read the whole cluster into the product's tables."""
    made = State(builders.VENDORS)
    for node in client.get(nodes_path())["items"]:
        made.observe_node(codec.decode(codec.encode(node), objects.Node, what="node"))
    for each in client.get(pods_path())["items"]:
        made.observe_pod(_read(each))
    return made


def expected(client: Client, body: Object, among: Sequence[str]) -> tuple[str, list[list[str]]]:
    """Ask the core where a pod goes now: the node, and the cards of each container."""
    asking = {**body, "metadata": {**body["metadata"], "uid": "expected", "namespace": "expected"}}
    winner = builders.winner(builders.ask(state(client), _read(asking), among))
    assert winner is not None, f"the core finds no place for {body['metadata']['name']}"
    return winner


def given(bound: Object) -> tuple[str, list[list[str]]]:
    """Read where a pod went, from its annotations and its spec."""
    slots = shares.decode(bound["metadata"]["annotations"][nodes.KEYS.allocated])
    return bound["spec"]["nodeName"], [[grant.card for grant in slot] for slot in slots]


def overbooked(client: Client) -> list[str]:
    """Name the cards that hold more than they have, by the product's own tables."""
    found = state(client)
    wrong = []
    for name, facts in found.nodes.items():
        for card in itertools.chain.from_iterable(facts.cards.values()):
            used, memory, cores = builders.use(found, name, card.id)
            if used > card.count or memory > card.devmem or cores > card.devcore:
                wrong.append(f"{name} {card.id}: {used} containers, {memory} MiB, {cores} %")
    return wrong


def _read(pod: Object) -> objects.Pod:
    return codec.decode(codec.encode(pod), objects.Pod, what="pod")
