"""The cards that a node offers, and the link score of each pair.

Pure: cards in, register entries out, in the order of their index, so that the same cards always
make the same bytes. What is not offered has a note that says why and what to do; a card that cannot
be registered does not affect the others. The numbers are HAMi's (docs/designs/006).

Static MIG has three strategies. `none`: a card with MIG enabled is not offered. `single`: each of
its MIG devices is a card of its own. `mixed`: MIG devices are resources by their profile, which
kubelet hands out by itself. Cards without MIG are cards in all three.

A pair's link score is the sum over its links: the nearest PCIe ancestor, and the NVLinks between
them. Where the two directions differ the lower one counts, and nothing where one card does not see
a link at all.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import msgspec

from hami.agent.cards.node_config import NodeConfig
from hami.node.nvml_cards import NVSWITCH, Card, CardLinks, MigDevice, Problem
from hami.vendors.table import Vendor
from hami.wire import errors, mig, node_register
from hami.wire.node_register import PairScores, RegisteredCard

_MIB = 1024 * 1024
_WHOLE = 100


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class CardInventory:
    """The cards and MIG devices that a node offers."""

    #: Registered cards, by index.
    devices: tuple[RegisteredCard, ...] = ()
    #: By id of a registered card, its NUMA node; missing where the node is not known.
    numa: Mapping[str, int] = dataclasses.field(default_factory=dict)
    #: MIG devices by the resource that offers them (`mixed`).
    static_mig: Mapping[str, tuple[MigDevice, ...]] = dataclasses.field(default_factory=dict)
    #: What is not offered or unusual, and what to do about it.
    notes: tuple[str, ...] = ()

    def register(self, *, in_service: bool = True) -> str:
        """Return the register annotation's value; out of service no card is healthy."""
        devices = self.devices
        if not in_service:
            devices = tuple(msgspec.structs.replace(device, health=False) for device in devices)
        return node_register.encode_json(devices)

    def shares(self, vendor: Vendor) -> dict[str, int]:
        """Return the sums of memory and cores of healthy cards, by resource name."""
        healthy = [device for device in self.devices if device.health]
        sums = {
            vendor.resources.memory: sum(d.devmem for d in healthy) // vendor.memory_factor,
            vendor.resources.cores: sum(device.devcore for device in healthy),
        }
        return {name: amount for name, amount in sums.items() if name}


def build(
    cards: Iterable[Card],
    problems: Iterable[Problem],
    config: NodeConfig,
    healthy: Callable[[str], bool],
) -> CardInventory:
    """Decide what to offer; `healthy` is called with a card's UUID."""
    work = _Building(config, healthy)
    work.notes.extend(str(problem) for problem in problems)
    if config.nvidia.device_split_count == 0:
        work.notes.append("devicesplitcount is 0 on this node: no card is offered as shares")
    ordered = sorted(cards, key=lambda card: (card.index, card.uuid))
    for card in ordered:
        if card.uuid in config.filter_uuids or card.index in config.filter_indexes:
            continue  # configured so: no note
        if card.mig_enabled:
            work.cut_card(card)
        else:
            work.whole_card(card)
    work.check_single()
    return CardInventory(
        devices=tuple(sorted(work.devices.values(), key=lambda device: (device.index, device.id))),
        numa=work.numa,
        static_mig={name: tuple(work.static_mig[name]) for name in sorted(work.static_mig)},
        notes=tuple(work.notes),
    )


def index_of(card: Card, part: MigDevice) -> int:
    """Return the index of a MIG device that is registered as a card.

    It depends on the card and the instance only, and is above those of all cards: creating or
    removing other instances does not change it.
    """
    return 10_000 * (card.index + 1) + 100 * part.gpu_instance_id + part.compute_instance_id


class _Building:
    """An inventory while it is being built."""

    def __init__(self, config: NodeConfig, healthy: Callable[[str], bool]) -> None:
        self.devices: dict[str, RegisteredCard] = {}
        self.numa: dict[str, int] = {}
        self.static_mig: dict[str, list[MigDevice]] = {}
        self.notes: list[str] = []
        self._config = config
        self._healthy = healthy
        self._whole: list[Card] = []
        self._profiles: set[str] = set()

    def whole_card(self, card: Card) -> None:
        settings = self._config.nvidia
        memory = card.memory // _MIB or settings.pre_configured_device_memory
        if memory == 0:
            self.notes.append(
                f"{_called(card)}: the driver does not report its memory, so it is not offered; "
                "set preconfigureddevicememory (MiB) in the node's configuration"
            )
            return
        offered = self._offer(
            RegisteredCard(
                id=card.uuid,
                index=card.index,
                count=settings.device_split_count,
                devmem=_scaled(memory, settings.device_memory_scaling),
                devcore=_scaled(_WHOLE, settings.device_core_scaling),
                type=card.type,
                numa=card.numa or 0,  # HAMi's annotation has no word for unknown
                mode=self._config.operating_mode,
                health=self._healthy(card.uuid),
            ),
            card,
        )
        if offered:
            self._whole.append(card)

    def cut_card(self, card: Card) -> None:
        """Add a card with MIG enabled: its MIG devices, or nothing."""
        if self._config.mig_strategy == "none":
            self.notes.append(
                f"{_called(card)}: MIG is on, so it is not offered; set the MIG strategy to single "
                "or mixed to offer its MIG devices, or turn MIG off with "
                f"`nvidia-smi -i {card.index} -mig 0`"
            )
            return
        if not card.mig:
            self.notes.append(
                f"{_called(card)}: MIG is on and it has no MIG device, so nothing of it is "
                f"offered; create some with `nvidia-smi mig -i {card.index} -cgi … -C`, or turn "
                f"MIG off with `nvidia-smi -i {card.index} -mig 0`"
            )
            return
        for part in self._parts(card):
            if self._config.mig_strategy == "single":
                self._part_as_card(card, part)
            else:
                self._part_as_resource(card, part)

    def check_single(self) -> None:
        """Note where `single` offers cards that are not alike."""
        if self._config.mig_strategy != "single" or not self._profiles:
            return
        if len(self._profiles) > 1:
            self.notes.append(
                f"MIG devices of the profiles {', '.join(sorted(self._profiles))} are offered as "
                "cards alike (MIG strategy single); pods tell them apart by nvidia.com/use-gputype "
                "only; use mixed to offer each profile as a resource of its own"
            )
        for card in self._whole:
            self.notes.append(
                f"{_called(card)}: is offered whole beside MIG devices (MIG strategy single); turn "
                f"MIG on with `nvidia-smi -i {card.index} -mig 1`, or use mixed"
            )

    def _parts(self, card: Card) -> Iterator[MigDevice]:
        order = sorted(card.mig, key=lambda part: (index_of(card, part), part.uuid))
        for part in order:
            taken_out = index_of(card, part) in self._config.filter_indexes
            if part.uuid not in self._config.filter_uuids and not taken_out:
                yield part

    def _part_as_card(self, card: Card, part: MigDevice) -> None:
        memory = part.memory // _MIB
        if memory == 0:
            self.notes.append(
                f"MIG device {part.uuid} of {_called(card)}: the driver does not report its "
                "memory, so it is not offered; check `nvidia-smi -L`, or use the MIG strategy mixed"
            )
            return
        # Neither memory nor compute is scaled: the hardware keeps MIG devices apart.
        offered = self._offer(
            RegisteredCard(
                id=part.uuid,
                index=index_of(card, part),
                count=self._config.nvidia.device_split_count,
                devmem=memory,
                devcore=_WHOLE,
                # As the driver names a MIG device.
                type=f"{card.type} MIG {part.profile}",
                numa=card.numa or 0,  # HAMi's annotation has no word for unknown
                mode=self._config.operating_mode,
                health=self._healthy(card.uuid),
            ),
            card,
        )
        if offered:
            self._profiles.add(part.profile)

    def _part_as_resource(self, card: Card, part: MigDevice) -> None:
        try:
            resource = mig.parse_profile(part.profile).resource
        except errors.WireError as error:
            self.notes.append(
                f"MIG device {part.uuid} of {_called(card)}: no resource can be named after its "
                f"profile, so it is not offered: {error}"
            )
            return
        self.static_mig.setdefault(resource, []).append(part)

    def _offer(self, device: RegisteredCard, card: Card) -> bool:
        """Add a card if the register annotation can carry it."""
        if device.count == 0:
            return False
        try:
            node_register.encode_json([device])
        except errors.WireError as error:
            self.notes.append(f"GPU {device.index} is not offered: {error}")
            return False
        if device.id in self.devices:
            self.notes.append(
                f"GPU {device.index} is not offered: GPU {self.devices[device.id].index} has the "
                f"same UUID {device.id}; restart the driver, or ask its vendor"
            )
            return False
        self.devices[device.id] = device
        if card.numa is not None:
            self.numa[device.id] = card.numa
        return True


def _called(card: Card) -> str:
    return f"GPU {card.index} ({card.uuid})"


def _scaled(amount: int, factor: float) -> int:
    """Truncate, never round: HAMi's agent writes the same number."""
    return int(amount * factor)


#: By NVML's level of the nearest common ancestor of two cards on PCIe.
_ANCESTORS = {
    0: 60,  # the board
    10: 50,  # one switch
    20: 40,  # several switches
    30: 30,  # the host bridge
    40: 20,  # the CPU, or NUMA node
    50: 10,  # the machine
}
_NVLINK = 100
_MOST_NVLINKS = 18


def pair_scores(cards: Sequence[CardLinks]) -> tuple[tuple[PairScores, ...], tuple[str, ...]]:
    """Score every pair; the notes name pairs whose two directions differ."""
    scores: dict[str, dict[str, int]] = {card.uuid: {} for card in cards}
    notes: list[str] = []
    for one, other in itertools.combinations(cards, 2):
        score, note = _pair(one, other)
        scores[one.uuid][other.uuid] = scores[other.uuid][one.uuid] = score
        if note:
            notes.append(note)
    order = [card.uuid for card in cards]
    return tuple(
        PairScores(
            uuid=uuid,
            score={other: scores[uuid][other] for other in order if other != uuid},
        )
        for uuid in order
    ), tuple(notes)


def _pair(one: CardLinks, other: CardLinks) -> tuple[int, str]:
    there, back = _links(one, other), _links(other, one)
    if there == back:
        return sum(there), ""
    pair = f"GPU {one.uuid} and GPU {other.uuid}"
    if len(there) != len(back):
        return 0, (
            f"{pair} see {len(there)} and {len(back)} kinds of links to each other, so their link "
            "does not count; check `nvidia-smi topo -m` and the NVLinks, then restart the agent"
        )
    score = min(sum(there), sum(back))
    return score, (
        f"{pair} score their links {sum(there)} and {sum(back)}, so {score} counts; some NVLink "
        "may be down at one end only: check `nvidia-smi nvlink --status`"
    )


def _links(one: CardLinks, other: CardLinks) -> list[int]:
    found = [_ANCESTORS.get(one.ancestors.get(other.uuid, -1), 0)]
    count = one.nvlinks.count(other.bus_id)
    if not count:
        count = min(one.nvlinks.count(NVSWITCH), other.nvlinks.count(NVSWITCH))
    if count <= _MOST_NVLINKS:
        found.append(_NVLINK * count)
    return [score for score in found if score]
