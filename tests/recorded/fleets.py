"""Random nodes of one vendor, each as its device plugin registers it.

A `Card` is what a generator of pods has to know of a card: where it is and how much of it there is.
Every tenth node is broken: unregistered, unreadable, or given up by its plugin.
"""

from __future__ import annotations

import dataclasses
import json
import random
from collections.abc import Callable
from typing import Any

Document = dict[str, Any]

ILUVATAR = ("MR-V100", "MR-V50", "BI-V150", "BI-V100")
LAST_SEEN = "Requesting_2020-01-01 00:00:00"
"""A handshake that no plugin has answered since."""

PROFILES = (
    {"1g.8gb": "0", "2g.16gb": "1", "3g.24gb": "2", "6g.48gb": "3"},
    {"1g.8gb": "1", "3g.24gb": "3", "6g.48gb": "6"},
    {"2g.16gb": "10", "4g.32gb": "20"},
)


@dataclasses.dataclass(frozen=True)
class Card:
    node: str
    id: str
    #: As the lists in pods' annotations name it.
    type: str
    #: The vendor's name, which keys these lists.
    word: str
    memory: int
    cores: int
    count: int
    #: Shared Enflame cards: profile name to id.
    profiles: tuple[tuple[str, str], ...] = ()
    minor: str = ""


def nodes(vendor: str, rng: random.Random) -> tuple[list[Document], list[Card]]:
    """Draw one to three nodes with one to four cards each."""
    made: list[Document] = []
    cards: list[Card] = []
    shape = _SHAPES[vendor]
    fleet = rng.randrange(1 << 30)  # what all nodes of a fleet have in common
    alike = rng.random() < 0.5
    for number in range(rng.choice((1, 2, 2, 3))):
        name = f"node-{number}"
        own = random.Random(fleet) if alike else rng
        registered, here = shape(name, own, random.Random(fleet))
        broken = rng.random() < 0.1
        if broken:
            registered = _broken(registered, rng)
        made.append(_node(name, registered))
        # Pods may still hold cards of a node that broke later.
        cards += here
    return made, cards


def _node(name: str, registered: Document) -> Document:
    metadata: Document = {"name": name, "uid": f"uid-{name}"}
    if registered.get("annotations"):
        metadata["annotations"] = registered["annotations"]
    node: Document = {"metadata": metadata}
    if amounts := registered.get("capacity"):
        node["status"] = {
            "capacity": amounts,
            "allocatable": registered.get("allocatable", amounts),
        }
    return node


def _broken(registered: Document, rng: random.Random) -> Document:
    """Break a node: no register, text that is none, or a handshake without an answer."""
    annotations = dict(registered.get("annotations", {}))
    handshake = registered.get("handshake")
    registers = [key for key in annotations if key != handshake]
    how = rng.choice(("absent", "unreadable", "given up"))
    if how == "given up" and handshake:
        annotations[handshake] = LAST_SEEN
        return {"annotations": annotations}
    if registers and how == "unreadable":
        annotations[registers[0]] = rng.choice(("nonsense", "[{]", "a,b:", ""))
        return registered | {"annotations": annotations}
    empty = dict.fromkeys(registered.get("capacity", {}), "0")
    return {"capacity": empty} if rng.random() < 0.5 else {}


def _handshake(rng: random.Random) -> str:
    return rng.choice(("", "Reported_2026-01-01 00:00:00", "Reported"))


def _colon(cards: list[Document], rng: random.Random) -> str:
    short = rng.random() < 0.2
    text = ""
    for card in cards:
        fields = [card["id"], card["count"], card["devmem"], card["devcore"], card["type"]]
        fields += [card["numa"], "true" if card["health"] else rng.choice(("false", "0", "F"))]
        if not short:
            fields += [card["index"], "hami-core"]
        text += ",".join(str(field) for field in fields) + ":"
    return text


def _json(cards: list[Document], rng: random.Random) -> str:
    """Write a register as Go does: zero, empty and false are left out."""
    rng.shuffle(cards)
    written = [{key: value for key, value in card.items() if value} for card in cards]
    return json.dumps(written, separators=(",", ":"))


def _registered(
    name: str,
    rng: random.Random,
    *,
    prefix: str,
    types: tuple[str, ...],
    memories: tuple[int, ...],
    cores: tuple[int, ...],
    counts: tuple[int, ...],
) -> list[Document]:
    kind, memory, core = rng.choice(types), rng.choice(memories), rng.choice(cores)
    count = rng.choice(counts)
    cards = []
    for index in range(rng.choice((1, 2, 2, 3, 3, 4))):
        if rng.random() < 0.08:  # a node with different cards
            kind, memory, core = rng.choice(types), rng.choice(memories), rng.choice(cores)
        cards.append(
            {
                "id": f"{prefix}-{name[-1]}{index}",
                "index": index,
                "count": count,
                "devmem": memory,
                "devcore": core,
                "type": kind,
                "numa": rng.choice((0, 0, 1)),
                "mode": "hami-core",
                "health": rng.random() > 0.08,
            }
        )
    return cards


def _known(name: str, cards: list[Document], word: str, *, own_type: bool = False) -> list[Card]:
    return [
        Card(
            name, card["id"], card["type"] if own_type else word, word,
            card["devmem"], card["devcore"], card["count"],
        )
        for card in cards
    ]  # fmt: skip


Shape = tuple[Document, list[Card]]


def _hygon(name: str, rng: random.Random, _fleet: random.Random) -> Shape:
    cards = _registered(
        name, rng, prefix="DCU", types=("DCU-K100", "DCU-Z100L", "DCU-K100_AI"),
        memories=(16384, 32768, 65520), cores=(60, 64, 100, 100, 120), counts=(1, 2, 4, 10),
    )  # fmt: skip
    key = "hami.io/node-handshake-dcu"
    annotations = {"hami.io/node-dcu-register": _colon(cards, rng)}
    if said := _handshake(rng):
        annotations[key] = said
    capacity = {"hygon.com/dcunum": str(sum(card["count"] for card in cards))}
    node = {"annotations": annotations, "capacity": capacity, "handshake": key}
    return node, _known(name, cards, "DCU")


def _iluvatar(name: str, rng: random.Random, fleet: random.Random) -> Shape:
    word = fleet.choice(ILUVATAR) if rng.random() < 0.85 else rng.choice(ILUVATAR)
    cards = _registered(
        name, rng, prefix="GPU", types=(f"Iluvatar {word}", word, f"Iluvatar-{word}-32G"),
        memories=(16384, 32768, 65536), cores=(100,), counts=(1, 4, 10, 100),
    )  # fmt: skip
    key = f"hami.io/node-handshake-{word}"
    annotations = {f"hami.io/node-{word}-register": _colon(cards, rng)}
    if said := _handshake(rng):
        annotations[key] = said
    capacity = {f"iluvatar.ai/{word}-vgpu": str(sum(card["count"] for card in cards))}
    node = {"annotations": annotations, "capacity": capacity, "handshake": key}
    return node, _known(name, cards, word)


def _biren(name: str, rng: random.Random, _fleet: random.Random) -> Shape:
    cards = _registered(
        name, rng, prefix="Biren", types=("Biren166M", "Biren106C", "Biren106B"),
        memories=(32768, 65536), cores=(0, 100), counts=(1, 1, 2, 4),
    )  # fmt: skip
    key = "hami.io/node-handshake-biren"
    annotations = {"hami.io/node-biren-register": _json(cards, rng)}
    if said := _handshake(rng):
        annotations[key] = said
    capacity = {"birentech.com/gpu": str(len(cards))}
    node = {"annotations": annotations, "capacity": capacity, "handshake": key}
    return node, _known(name, cards, "Biren")


def _amd(name: str, rng: random.Random, _fleet: random.Random) -> Shape:
    cards = _registered(
        name, rng, prefix="AMD", types=("AMD Instinct MI300X", "AMD Instinct MI210", "AMD-MI250"),
        memories=(65536, 131072, 196608), cores=(104, 228, 304, 7), counts=(1, 2, 4, 10),
    )  # fmt: skip
    annotations = {"hami.io/node-amd-register": _json(cards, rng)}
    capacity = {"amd.com/gpu": str(len(cards) if rng.random() > 0.05 else 0)}
    node = {"annotations": annotations, "capacity": capacity}
    return node, _known(name, cards, "AMD", own_type=True)


def _gcu(name: str, rng: random.Random, _fleet: random.Random) -> Shape:
    number = rng.choice((1, 2, 3, 4))
    cards = [Card(name, f"{name}-GCU-{i}", "GCU", "GCU", 100, 100, 1) for i in range(number)]
    return {"capacity": {"enflame.com/gcu": str(number)}}, cards


def _drs(name: str, rng: random.Random, fleet: random.Random) -> Shape:
    profiles = PROFILES[fleet.randrange(3)] if rng.random() < 0.8 else rng.choice(PROFILES)
    most = max(int(each.split("g")[0]) for each in profiles)
    memory = 1024 * max(int(each.split(".")[1][:-2]) for each in profiles)
    devices, cards = [], []
    for index in range(rng.choice((1, 2, 2, 3, 4))):
        minor = str(index + rng.choice((0, 0, 8)))
        capacity: Any = most if rng.random() < 0.7 else str(most)
        devices.append({"index": str(index), "minor": minor, "capacity": capacity})
        cards.append(
            Card(
                name, f"{name}-enflame-drs-{index}", "Enflame", "Enflame", memory, 100, most,
                tuple(sorted(profiles.items())), minor,
            )
        )  # fmt: skip
    spec = json.dumps({"devices": devices, "profiles": profiles}, separators=(",", ":"))
    return {
        "annotations": {"enflame.com/gcu-drs-capacity": spec},
        "capacity": {"enflame.com/drs-gcu": str(most * len(devices))},
    }, cards


def _vgcu(name: str, rng: random.Random, fleet: random.Random) -> Shape:
    factor = fleet.choice((2, 4, 5, 6, 8))  # HAMi 2.8 keeps one for all nodes
    number = rng.choice((1, 2, 3, 4))
    capacity = {
        "enflame.com/gcu-count": str(number),
        "enflame.com/shared-gcu": str(number * factor),
    }
    cards = [
        Card(name, f"{name}-enflame-{i}", "Enflame", "Enflame", 100, 100, 100)
        for i in range(number)
    ]
    return {"capacity": capacity}, cards


def _cambricon(name: str, rng: random.Random, _fleet: random.Random) -> Shape:
    number = rng.choice((1, 2, 3, 4))
    units = rng.choice((64, 96, 128, 192))  # of 256 MiB
    cores = number * 100 - (rng.choice((0, 0, 0, 0, 50)))
    total = number * units
    capacity = {
        "cambricon.com/vmlu": str(number * 100),
        "cambricon.com/mlu.smlu.vcore": str(cores),
        "cambricon.com/mlu.smlu.vmemory": str(total),
    }
    memory = total * 256 * 100 // cores
    cards = [
        Card(name, f"{name}-cambricon-mlu-{i}", "MLU", "MLU", memory, 100, 100)
        for i in range(-(-cores // 100))
    ]
    return {"capacity": capacity}, cards


_SHAPES: dict[str, Callable[[str, random.Random, random.Random], Shape]] = {
    "hygon": _hygon,
    "iluvatar": _iluvatar,
    "biren": _biren,
    "gcu": _gcu,
    "drs": _drs,
    "vgcu": _vgcu,
    "cambricon": _cambricon,
    "amd": _amd,
}
VENDORS = tuple(_SHAPES)
"""The vendors whose cases are recorded; Enflame is three: whole, shared (drs), HAMi 2.8's vgcu."""
