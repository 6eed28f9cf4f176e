"""The nodes of a scenario: cards, often copied from another node, cordons and ids.

Equal nodes make ties, odd cards make reasons. Pods come next: scenario_placed_pods.py.
"""

from __future__ import annotations

from typing import Any

from hami.wire import node_register, objects
from tests.oracle.reference_holdings import by_node, cards_of, held_ids
from tests.oracle.sample_vendors import NVIDIA
from tests.oracle.scenario_draft import Amounts, Draft
from tests.oracle.scenario_incoming_pod import readable

_TYPES = (
    ("NVIDIA A100-SXM4-40GB", 40960),
    ("NVIDIA H200", 143771),
    ("NVIDIA H20", 97871),
    ("NVIDIA A10", 23028),
    ("NVIDIA A10G", 23028),
    ("NVIDIA-Tesla P4", 7680),
    ("NVIDIA GeForce RTX 3090", 24576),
    ("NVIDIA A100-SXM4-80GB", 81920),
)


def add_node(draft: Draft, name: str) -> None:
    tape = draft.tape
    letter = name[-1]
    if draft.nodes and tape.chance(draft.flavour.copy):
        original = tape.pick(list(draft.nodes))
        draft.originals[name] = original
        draft.nodes[name] = {
            vendor: [_changed(device, id=copied(device.id, letter)) for device in devices]
            for vendor, devices in draft.nodes[original].items()
        }
        return
    cards: dict[str, list[node_register.RegisteredCard]] = {}
    if not tape.chance(4):
        cards["NVIDIA"] = _nvidia_cards(draft, letter)
    elif tape.chance(30):
        cards["NVIDIA"] = []
    if len(draft.vendors) > 1 and tape.chance(70):
        cards["ACME"] = _acme_cards(draft, letter)
    draft.nodes[name] = cards
    cordoned = [
        device.id for device in cards.get("NVIDIA", ()) if tape.chance(draft.flavour.trouble // 3)
    ]
    if cordoned:
        draft.cordons[name] = tape.pick((",", ", ", ",,")).join([*cordoned, "GPU-unknown"])


def _nvidia_cards(draft: Draft, letter: str) -> list[node_register.RegisteredCard]:
    tape = draft.tape
    size = tape.pick((2, 1, 2, 3, 4, 4, 6, 8, 9, 10))
    kind, memory = tape.pick(_TYPES)
    memory = tape.pick((memory, memory, 8000, 16384))
    count = tape.pick((10, 10, 4, 3, 2, 1))
    cores = tape.pick((100, 100, 100, 100, 200, 50))
    mode = tape.pick(("hami-core", "", "hami-core", "hami-core", "hami-core", "mps", "mig"))
    if mode == "mig" and tape.chance(50):
        mode = "hami-core"
    numbering = tape.pick(("in order", "in order", "missing", "reversed", "scattered"))
    numas = tape.pick(("none", "halves", "halves", "random", "unknown"))
    mixed = tape.chance(25)
    trouble = draft.flavour.trouble
    devices: list[node_register.RegisteredCard] = []
    for place in range(size):
        index = {"in order": place, "missing": 0, "reversed": size - place}.get(numbering)
        numa = {"none": 0, "halves": 2 * place // size, "unknown": -1}.get(numas)
        device = node_register.RegisteredCard(
            id=f"GPU-{letter}{(place * 7 + 3) % 11:x}",
            index=tape.below(12) if index is None else index,
            count=count,
            devmem=tape.pick((memory, memory // 2, 5000, 10240)) if mixed else memory,
            devcore=cores,
            type=kind,
            numa=tape.below(5) - 1 if numa is None else numa,
            mode=mode,
            health=True,
        )
        if tape.chance(trouble):
            device = _odd_card(draft, device)
        devices.append(device)
    return devices


def _odd_card(draft: Draft, device: node_register.RegisteredCard) -> node_register.RegisteredCard:
    tape = draft.tape
    what = tape.pick(("health", "mode", "type", "count", "devcore", "devmem", "health", "mode"))
    values: dict[str, object] = {
        "health": False,
        "mode": tape.pick(("mig", "mps", "mig", "hami-core")),
        "type": tape.pick(_TYPES)[0],
        "count": tape.pick((1, 0, 2, 20)),
        "devcore": tape.pick((50, 0, 200, 300)),
        "devmem": tape.pick((2000, 0, 4000)),
    }
    return _changed(device, **{what: values[what]})


def _acme_cards(draft: Draft, letter: str) -> list[node_register.RegisteredCard]:
    tape = draft.tape
    memory = tape.pick((16384, 65536, 5120))
    count = tape.pick((10, 4, 2))
    return [
        node_register.RegisteredCard(
            id=f"ACME-{letter}{place}",
            index=place,
            count=count,
            devmem=memory,
            devcore=100,
            type="ACME One",
            numa=place % 2,
            health=not tape.chance(draft.flavour.trouble // 2),
        )
        for place in range(tape.pick((2, 1, 3, 4)))
    ]


def _changed(
    device: node_register.RegisteredCard, **changes: object
) -> node_register.RegisteredCard:
    fields: dict[str, Any] = {name: getattr(device, name) for name in device.__struct_fields__}
    return node_register.RegisteredCard(**(fields | changes))


def copied(card: str, letter: str) -> str:
    """Return the id of the like card on the node with this letter."""
    word, _, rest = card.partition("-")
    return card if rest == "replaced" else f"{word}-{letter}{rest[1:]}"


def add_use(draft: Draft) -> None:
    """Work out what the pods use of every card, once they are all there."""
    pods_on = by_node(draft.counting_pods())
    for name in draft.nodes:
        node = objects.Node(objects.Metadata(name=name, annotations=_registers(draft, name)))
        draft.cards[name] = {
            vendor.name: cards_of(node, vendor, pods_on.get(name, [])) for vendor in draft.vendors
        }


def _registers(draft: Draft, name: str) -> dict[str, str | None]:
    registers = {vendor.name: vendor.register for vendor in draft.vendors}
    values: dict[str, str | None] = {
        registers[vendor]: node_register.encode_json(devices)
        for vendor, devices in draft.nodes[name].items()
    }
    if name in draft.cordons:
        values[NVIDIA.cordon] = draft.cordons[name]
    return values


def node_object(draft: Draft, name: str, pod: objects.Pod) -> objects.Node:
    tape = draft.tape
    allocatable: Amounts = {"cpu": "64", "memory": "512Gi"}
    others = [p for p in draft.counting_pods() if p.node_name == name]
    for vendor in draft.vendors:
        ids = sum(device.count for device in draft.nodes[name].get(vendor.name, ()))
        how = tape.below(100)
        if how >= 98:
            continue
        if how >= 96:
            allocatable[vendor.count] = "0"
        elif how >= 86:
            exact = held_ids(pod, vendor) if readable(pod) else 1
            exact += sum(held_ids(other, vendor) for other in others)
            allocatable[vendor.count] = max(exact + tape.pick((0, -1, 1)), 0)
        else:
            allocatable[vendor.count] = str(ids + 40)
    return objects.Node(
        metadata=objects.Metadata(name=name, annotations=_registers(draft, name)),
        status=objects.NodeStatus(allocatable=allocatable),
    )


def asked_names(draft: Draft) -> list[str]:
    tape = draft.tape
    names = list(draft.nodes)
    if len(names) > 1 and tape.chance(10):
        names = tape.subset(names, 1 + tape.below(len(names)))
    if tape.chance(5):
        names.insert(tape.below(len(names) + 1), "unheard-of")
    return names
