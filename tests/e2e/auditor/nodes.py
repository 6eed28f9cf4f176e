"""A node as the auditor reads it: name, annotations, NVIDIA cards."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from tests.e2e.auditor import node_annotations
from tests.e2e.auditor.evidence import Json
from tests.e2e.auditor.malformed import MalformedError
from tests.e2e.auditor.node_annotations import NVIDIA_REGISTER, Card

Cards = Mapping[str, Card]
"""By card id."""


def name_of(node: Json) -> str:
    return str(node.get("metadata", {}).get("name", ""))


def annotations_of(node: Json) -> Mapping[str, str]:
    return node.get("metadata", {}).get("annotations") or {}


def cards_of(node: Json) -> Cards | None:
    """Return its cards; None if it registers none, or by a text that does not decode."""
    value = annotations_of(node).get(NVIDIA_REGISTER)
    if value is None:
        return None
    try:
        cards = node_annotations.register(NVIDIA_REGISTER, value)
    except MalformedError:
        return None  # check_nodes.py reports it
    return {card.id: card for card in cards or ()}


def registers(nodes: Iterable[Json]) -> dict[str, Cards]:
    """Return the cards of all nodes that register some, by node name."""
    found = {name_of(node): cards_of(node) for node in nodes}
    return {name: cards for name, cards in found.items() if cards is not None}
