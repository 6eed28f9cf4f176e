"""One moment of the cluster as plain data, for the view and its tests.

Granted shares are read from pods, used memory comes from the nodes' monitors.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

import msgspec

from hami.wire import objects
from hami_sandbox.demo import cards, cluster_view
from hami_sandbox.demo.cards import Card, SeenPod

_MIB = 1 << 20


class CardRow(msgspec.Struct, frozen=True):
    card: Card
    #: MiB in use as the driver counts them; None: not known.
    used: float | None


class NodeRow(msgspec.Struct, frozen=True):
    name: str
    binding: str
    cards: tuple[CardRow, ...]


class PodRow(msgspec.Struct, frozen=True):
    name: str
    phase: str
    node: str
    #: MiB and percent over all its cards.
    cards: int
    memory: int
    cores: int
    #: MiB in use; None: not known.
    used: float | None
    trouble: str = ""


class Rest(msgspec.Struct, frozen=True):
    """The sum of all simulated nodes."""

    nodes: int = 0
    cards: int = 0
    memory: int = 0
    granted_memory: int = 0
    shares: int = 0


class Snapshot(msgspec.Struct, frozen=True):
    nodes: tuple[NodeRow, ...]
    simulated: Rest
    #: Newest first.
    pods: tuple[PodRow, ...]
    phases: tuple[tuple[str, int], ...]


def take(
    nodes: Iterable[objects.Node],
    pods: Sequence[SeenPod],
    samples: Sequence[cluster_view.Sample],
    *,
    real: frozenset[str],
) -> Snapshot:
    """Return the present state; `real` are the nodes that run agents."""
    known = {node.name: node for node in nodes}
    found = cards.of_all(known.values(), pods)
    on_cards = _sums(samples, cluster_view.CARD_USED, "device_uuid")
    phases = Counter("Terminating" if pod.deleting else pod.phase or "Pending" for pod in pods)
    return Snapshot(
        nodes=tuple(
            NodeRow(
                name,
                cards.binding(known[name]),
                tuple(CardRow(card, on_cards.get((card.uuid,))) for card in of_node),
            )
            for name, of_node in found.items()
            if name in real
        ),
        simulated=_rest([of_node for name, of_node in found.items() if name not in real]),
        pods=_pods(pods, samples),
        phases=tuple(sorted(phases.items())),
    )


def _pods(pods: Sequence[SeenPod], samples: Sequence[cluster_view.Sample]) -> tuple[PodRow, ...]:
    in_shares = _sums(samples, cluster_view.SHARE_USED, "namespace", "pod")

    def newest(pod: SeenPod) -> tuple[str, str]:
        return (pod.metadata and pod.metadata.creation_timestamp) or "", pod.name

    return tuple(
        PodRow(
            pod.name if pod.namespace == "default" else f"{pod.namespace}/{pod.name}",
            "Terminating" if pod.deleting else pod.phase or "Pending",
            pod.node_name,
            len(pod.grants),
            sum(grant.memory_mib for grant in pod.grants),
            sum(grant.cores for grant in pod.grants),
            in_shares.get((pod.namespace, pod.name)),
            "" if pod.phase == "Running" else pod.troubles(),
        )
        for pod in sorted(pods, key=newest, reverse=True)
    )


def _rest(nodes: Sequence[Sequence[Card]]) -> Rest:
    every = [card for of_node in nodes for card in of_node]
    return Rest(
        nodes=len(nodes),
        cards=len(every),
        memory=sum(card.memory for card in every),
        granted_memory=sum(card.granted_memory for card in every),
        shares=sum(card.shares for card in every),
    )


def _sums(
    samples: Iterable[cluster_view.Sample], name: str, *labels: str
) -> dict[tuple[str, ...], float]:
    """Add up the samples of a name by some labels, in MiB."""
    found: dict[tuple[str, ...], float] = {}
    for sample in samples:
        if sample.name == name:
            key = tuple(sample.labels.get(label, "") for label in labels)
            found[key] = found.get(key, 0.0) + sample.value / _MIB
    return found
