"""Nodes of a sandbox: those with stand-in cards and agents, and simulated ones."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

import msgspec

from hami.simulation import catalogue
from hami_sandbox import gpus
from hami_sandbox.errors import SandboxError
from hami_sandbox.gpu_models import MODELS

#: Nodes that run real agents take three processes each.
MOST_NODES = 8
MOST_SIMULATED = 5000

_NODE = re.compile(r"([a-z0-9](?:[-a-z0-9]{0,61}[a-z0-9])?)=(.+)")
_CARDS = re.compile(r"([1-9]\d?)x(.+)")

#: Cards of other vendors, which `hami simulate-devices` offers; no container sees a device.
OTHERS = {
    name: model for name, model in catalogue.built_in().models.items() if model.vendor != "NVIDIA"
}


class NodePlan(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    #: How many cards of each model, in the order of their indexes.
    cards: tuple[tuple[str, int], ...] = ()
    #: The same of other vendors' models.
    others: tuple[tuple[str, int], ...] = ()
    #: Static MIG: profiles by the index of the card.
    mig: Mapping[int, tuple[str, ...]] = {}
    mig_strategy: str = "none"
    labels: Mapping[str, str] = {}


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    nodes: tuple[NodePlan, ...]
    #: Further nodes, which are rows in one process and start no containers.
    simulated: int = 0
    simulated_cards: tuple[tuple[str, int], ...] = (("H100", 8),)

    def check(self) -> None:
        names = [node.name for node in self.nodes]
        if len(set(names)) != len(names):
            raise SandboxError(f"nodes {', '.join(names)}", "name one twice", "name each once")
        if len(names) > MOST_NODES:
            raise SandboxError(
                f"{len(names)} nodes",
                f"are more than the {MOST_NODES} that can run real agents",
                "make the others simulated ones",
            )
        for node in self.nodes:
            count = sum(number for _, number in (*node.cards, *node.others))
            if not 1 <= count <= gpus.MOST_CARDS:
                raise SandboxError(
                    f"{count} cards of node {node.name}",
                    f"is not from 1 to {gpus.MOST_CARDS}",
                    "spread them over several nodes",
                )
        if not 0 <= self.simulated <= MOST_SIMULATED:
            raise SandboxError(
                f"{self.simulated} simulated nodes",
                f"is not from 0 to {MOST_SIMULATED}",
                "take fewer",
            )


def cards_text(cards: Iterable[tuple[str, int]]) -> str:
    """Write cards as users do: 4xA100-80GB,2xT4."""
    return ",".join(f"{count}x{model}" for model, count in cards)


def parse_node(text: str) -> NodePlan:
    """Read a node as users write it: gpu-a=8xH100, or gpu-b=4xA100-80GB,2xT4,2xZ100."""
    found = _NODE.fullmatch(text)
    if not found:
        raise SandboxError(
            f"node {text!r}", "does not read as NAME=CARDS", "write for example gpu-a=8xH100"
        )
    cards: list[tuple[str, int]] = []
    others: list[tuple[str, int]] = []
    for part in found[2].split(","):
        matched = _CARDS.fullmatch(part)
        if not matched or matched[2] not in MODELS | OTHERS:
            raise SandboxError(
                f"cards {part!r} of node {found[1]}",
                "do not read as COUNTxMODEL",
                f"models are {', '.join((*MODELS, *OTHERS))}; write for example 8xH100",
            )
        (cards if matched[2] in MODELS else others).append((matched[2], int(matched[1])))
    return NodePlan(name=found[1], cards=tuple(cards), others=tuple(others))
