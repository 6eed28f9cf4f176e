"""The cards of a node and their link scores, as annotations carry them.

The cards of a node, as its register annotation carries them.
Two formats are in use: a JSON array (NVIDIA and most vendors) and the older colon format (Hygon,
Iluvatar). The JSON is written with the field order, omissions and escapes of Go, so that HAMi's and
our agent write the same bytes for the same cards; only floats within custominfo may look different.
Any error rejects the whole annotation: half a node is worse than none, because the missing half may
be in use. What would be rejected is not written either.

How well the cards of a node are linked, as a node annotation carries it.
One entry per card, with a score for every other card of the node: a sum over the links between
the two, where more is better (NVLink counts hundreds, PCIe tens). Written by the device plugin,
read by the topology policy. A bad value rejects the whole annotation.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from hami.wire import codec, errors, shares, text_values

_INT16_MAX = 2**15 - 1
_OLD_FIELDS, _NEW_FIELDS = 7, 9
_LONGEST_TEXT = 256

_WHAT = "node register annotation"
_AMOUNTS = ("index", "count", "devmem", "devcore")
_TEXTS = ("id", "type", "mode")


class MigPlacement(codec.Object, frozen=True, omit_defaults=False):
    start: int = 0
    size: int = 0


class MigProfile(
    codec.Object,
    frozen=True,
    omit_defaults=False,
    rename={"memory": "memoryMB", "slice_count": "sliceCount"},
):
    name: str = ""
    memory: int = 0
    core: int = 0
    slice_count: int = 0
    placements: tuple[MigPlacement, ...] = ()


class RegisteredCard(codec.Object, frozen=True, rename={"mig_profiles": "migProfiles"}):
    """One card. The order of the fields is the order on the wire; zero values are omitted."""

    id: str = ""
    index: int = 0
    #: How many containers may share the card.
    count: int = 0
    #: MiB, after the node's memory scaling.
    devmem: int = 0
    #: Percent, after the node's core scaling.
    devcore: int = 0
    type: str = ""
    numa: int = 0
    mode: str = ""
    mig_profiles: tuple[MigProfile, ...] = ()
    health: bool = False
    devicevendor: str = ""
    custominfo: dict[str, Any] = msgspec.field(default_factory=dict)


def decode_json(value: str, *, what: str = _WHAT) -> tuple[RegisteredCard, ...]:
    """Read the JSON format. A field that is null counts as absent, as in Go."""
    return _checked(codec.decode_go(value, list[RegisteredCard], what=what), what)


def encode_json(devices: Iterable[RegisteredCard]) -> str:
    """Write the JSON format; what could not be read back is an error."""
    return codec.encode_text(_checked(devices, _WHAT))


def decode_colon(value: str, *, what: str = _WHAT) -> tuple[RegisteredCard, ...]:
    """Read the colon format, with seven or nine fields a card."""
    if ":" not in value:
        raise errors.WireError(what, value, "has no colon, which ends each card")
    records = (record for record in value.split(":") if record)
    return _checked((_colon_device(record, what) for record in records), what)


def encode_colon(devices: Iterable[RegisteredCard]) -> str:
    """Write the colon format, nine fields a card; what could not be read back is an error.

    It has no place for MIG and custominfo. A lone colon is a node without cards: readers refuse
    an empty text.
    """
    return "".join(map(_colon_record, _checked(devices, _WHAT))) or ":"


def _colon_device(record: str, what: str) -> RegisteredCard:
    fields = record.split(",")
    if len(fields) not in (_OLD_FIELDS, _NEW_FIELDS):
        raise errors.WireError(
            what, record, f"has {len(fields)} fields, not {_OLD_FIELDS} or {_NEW_FIELDS}"
        )
    card, count, memory, cores, kind, numa, health = fields[:_OLD_FIELDS]
    index, mode = fields[_OLD_FIELDS:] or ("0", "hami-core")
    what = f"{what}, card {errors.shorten(card)}"
    return RegisteredCard(
        id=card,
        index=text_values.parse_int32(index, what=f"{what}, index"),
        count=text_values.parse_int32(count, what=f"{what}, count"),
        devmem=text_values.parse_int32(memory, what=f"{what}, memory"),
        devcore=text_values.parse_int32(cores, what=f"{what}, cores"),
        type=kind,
        numa=text_values.parse_int32(numa, what=f"{what}, numa"),
        mode=mode,
        health=text_values.parse_bool(health, what=f"{what}, health"),
    )


def _colon_record(device: RegisteredCard) -> str:
    for text in (device.type, device.mode):
        if not shares.SEPARATORS.isdisjoint(text):
            raise errors.WireError(
                f"card {errors.shorten(device.id)}",
                text,
                "holds one of , : ; which the colon format cannot carry",
            )
    numbers = f"{device.count},{device.devmem},{device.devcore}"
    health = "true" if device.health else "false"
    return (
        f"{device.id},{numbers},{device.type},{device.numa},{health},{device.index},{device.mode}:"
    )


def _checked(devices: Iterable[RegisteredCard], what: str) -> tuple[RegisteredCard, ...]:
    """Hold every card to the rules that both formats share, in reading and in writing."""
    seen: dict[str, RegisteredCard] = {}
    for device in devices:
        if not device.id:
            raise errors.WireError(what, device.id, "is no card id: a card must have one")
        if not shares.SEPARATORS.isdisjoint(device.id):
            raise errors.WireError(what, device.id, "holds one of , : ; so no pod can be given it")
        if device.id in seen:
            raise errors.WireError(what, device.id, "stands there twice")
        seen[device.id] = device
        _check_card(device, what)
    return tuple(seen.values())


def _check_card(device: RegisteredCard, what: str) -> None:
    for field in _TEXTS:
        text = getattr(device, field)
        if len(text) > _LONGEST_TEXT:
            raise errors.WireError(
                f"{what}, card {errors.shorten(device.id)}, {field}",
                text,
                f"has {len(text)} characters, at most {_LONGEST_TEXT} are allowed",
            )
    for field in _AMOUNTS:
        amount = getattr(device, field)
        if not 0 <= amount <= text_values.INT32_MAX:  # named only where it is needed
            text_values.amount(amount, what=f"{what}, card {errors.shorten(device.id)}, {field}")
    if not -_INT16_MAX - 1 <= device.numa <= _INT16_MAX:
        card = f"{what}, card {errors.shorten(device.id)}"
        raise errors.WireError(f"{card}, numa", device.numa, "is outside 16 bits")
    for profile in device.mig_profiles:
        _check_profile(profile, f"{what}, card {errors.shorten(device.id)}")


def _check_profile(profile: MigProfile, what: str) -> None:
    what = f"{what}, MIG profile {errors.shorten(profile.name)}"
    text_values.amount(profile.memory, what=f"{what}, memoryMB")
    text_values.amount(profile.core, what=f"{what}, core")
    text_values.amount(profile.slice_count, what=f"{what}, sliceCount")
    for place in profile.placements:
        text_values.amount(place.start, what=f"{what}, start")
        text_values.amount(place.size, what=f"{what}, size")


_SCORES = "pair score annotation"


class PairScores(codec.Object, frozen=True, omit_defaults=False):
    """The scores of one card."""

    uuid: str
    #: Score by the other card's UUID.
    score: dict[str, int]


def decode_scores(value: str, *, what: str = _SCORES) -> tuple[PairScores, ...]:
    """Read the scores of all cards of a node; a score that is null is 0."""
    return _checked_scores(codec.decode_go(value, list[PairScores], what=what), what)


def encode_scores(cards: Iterable[PairScores]) -> str:
    """Write the scores of all cards of a node; what could not be read back is an error."""
    return codec.encode_text(_checked_scores(cards, _SCORES))


def _checked_scores(cards: Iterable[PairScores], what: str) -> tuple[PairScores, ...]:
    seen: dict[str, PairScores] = {}
    for card in cards:
        if not card.uuid:
            raise errors.WireError(what, card.uuid, "is no card id: an entry must name its card")
        if card.uuid in seen:
            raise errors.WireError(what, card.uuid, "stands there twice")
        seen[card.uuid] = card
        for other, number in card.score.items():
            if abs(number) > text_values.INT32_MAX:
                pair = f"{errors.shorten(card.uuid)} and {errors.shorten(other)}"
                raise errors.WireError(f"{what}, score of {pair}", number, "is outside 32 bits")
    return tuple(seen.values())
