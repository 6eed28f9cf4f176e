"""Replay of the timeline: the holders of each card at every moment.

Only the cards that an event touches are judged after it, so a long history costs what its events
cost. A pod holds what it was bound with, whatever its annotation says later; that it says something
else later is noted.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import NamedTuple

from tests.e2e.auditor import card_limits, nodes, pods
from tests.e2e.auditor.card_limits import Measure
from tests.e2e.auditor.evidence import Json
from tests.e2e.auditor.nodes import Cards
from tests.e2e.auditor.pod_annotations import ALLOCATED
from tests.e2e.auditor.pods import Holding, Pod
from tests.e2e.auditor.timeline import LIST, Sighting

Place = tuple[str, str]
"""Node and card id."""


class Worst(NamedTuple):
    """The highest excess of one measure on one card; `time` is when it was reached."""

    time: float
    value: int
    what: str


class Rewritten(NamedTuple):
    time: float
    pod: Pod
    first: str | None
    later: str | None


class Replay:
    def __init__(self, registers: dict[str, Cards], count_resource: str) -> None:
        """Start with the cards that are known; nodes in the timeline replace them."""
        self._registers = dict(registers)
        self._count = count_resource
        self._holdings: dict[str, dict[Place, Holding]] = {}
        self._holders: defaultdict[Place, dict[str, Holding]] = defaultdict(dict)
        self.bound: dict[str, Pod] = {}
        """Every pod that was ever on a node, by UID, as it was first seen there."""
        self.worst: dict[tuple[Place, Measure], Worst] = {}
        self.rewritten: dict[str, Rewritten] = {}

    def play(self, sightings: Iterable[Sighting]) -> None:
        for sighting in sightings:
            if sighting.kind == "Pod":
                touched = self._pods(sighting)
            elif sighting.kind == "Node":
                touched = self._nodes(sighting)
            else:
                continue
            for place in touched:
                self._judge(place, sighting.time)

    def _pods(self, sighting: Sighting) -> set[Place]:
        if sighting.type == "DELETED":
            return self._forget(_uid(sighting.object))
        if sighting.type != LIST:
            return self._see(Pod.of(sighting.object), sighting.time)
        items = sighting.object.get("items") or ()
        touched: set[Place] = set()
        for gone in set(self._holdings) - {_uid(item) for item in items}:
            touched |= self._forget(gone)
        for item in items:
            touched |= self._see(Pod.of(item), sighting.time)
        return touched

    def _see(self, pod: Pod, time: float) -> set[Place]:
        if not pod.node:
            return set()
        first = self.bound.setdefault(pod.uid, pod)
        granted, now = first.annotations.get(ALLOCATED), pod.annotations.get(ALLOCATED)
        if granted != now and pod.uid not in self.rewritten:
            self.rewritten[pod.uid] = Rewritten(time, pod, granted, now)
        if pod.ended:
            return self._forget(pod.uid)
        held = pods.holdings(pod, first.slots(), self._count)
        holdings = {(pod.node, card): holding for card, holding in held.items()}
        touched = self._forget(pod.uid) | set(holdings)
        self._holdings[pod.uid] = holdings
        for place, holding in holdings.items():
            self._holders[place][pod.uid] = holding
        return touched

    def _forget(self, uid: str) -> set[Place]:
        places = set(self._holdings.pop(uid, ()))
        for place in places:
            del self._holders[place][uid]
        return places

    def _nodes(self, sighting: Sighting) -> set[Place]:
        items = sighting.object.get("items") or () if sighting.type == LIST else [sighting.object]
        if sighting.type == "DELETED":
            return set()
        touched: set[Place] = set()
        for item in items:
            name, cards = nodes.name_of(item), nodes.cards_of(item)
            if cards is not None and cards != self._registers.get(name):
                self._registers[name] = cards
                touched |= {(name, card) for card in cards}
        return touched

    def _judge(self, place: Place, time: float) -> None:
        node, card_id = place
        card = self._registers.get(node, {}).get(card_id)
        if card is None:
            return
        holders = {self.bound[uid].full_name: one for uid, one in self._holders[place].items()}
        for excess in card_limits.excesses(card, holders):
            key = (place, excess.measure)
            if key not in self.worst or excess.value > self.worst[key].value:
                self.worst[key] = Worst(time, excess.value, excess.what)


def _uid(document: Json) -> str:
    return str(document.get("metadata", {}).get("uid", ""))
