"""A pod's question to the cluster: all that holds for every node.

Put together once per decision, so that the code that judges nodes looks nothing up.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from hami.cluster.quota import Headroom
from hami.cluster.state import Cluster
from hami.placement.request import CardRequest, PodRequest, Totals
from hami.vendors.row import Vendor
from hami.wire.objects import ContainerKind

Step = tuple[int, CardRequest]
"""The position of a container and one of its requests."""


class Question(msgspec.Struct, frozen=True):
    pod: PodRequest
    vendors: Mapping[str, Vendor]
    #: What the pod's namespace may still get, by vendor word.
    headroom: Mapping[str, Headroom]
    #: The pod added up, by vendor word.
    totals: Mapping[str, Totals]
    #: The most cards that one container asks for, by vendor word.
    most_cards: Mapping[str, int]
    #: In the order in which they are fitted.
    steps: tuple[Step, ...]

    def kind(self, position: int) -> ContainerKind:
        return self.pod.containers[position].kind

    def hardest_first(self) -> Question | None:
        """Return the question with its app containers in another order; None if there is none."""
        asking = [
            position
            for position, container in enumerate(self.pod.containers)
            if container.kind is ContainerKind.APP and container.cards
        ]
        hardest = sorted(asking, key=self._hardness, reverse=True)
        if hardest == asking:
            return None
        before = [step for step in self.steps if self.kind(step[0]) is not ContainerKind.APP]
        after = [(at, cards) for at in hardest for cards in self.pod.containers[at].cards]
        return msgspec.structs.replace(self, steps=(*before, *after))

    def _hardness(self, position: int) -> tuple[int, int, int, int]:
        return max(
            (cards.percentage, cards.memory, cards.cores, cards.count)
            for cards in self.pod.containers[position].cards
        )


def ask(cluster: Cluster, pod: PodRequest) -> Question:
    """Put the question together for a pod that is not in the ledger."""
    steps = tuple(pod.requests())
    return Question(
        pod=pod,
        vendors={word: cluster.vendors[word] for word in pod.wishes},
        headroom={
            word: cluster.quotas.headroom(pod.namespace, cluster.vendors[word])
            for word in pod.wishes
        },
        totals=pod.totals(),
        most_cards={
            word: max(cards.count for _, cards in steps if cards.word == word)
            for word in pod.wishes
        },
        steps=steps,
    )
