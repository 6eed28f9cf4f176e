"""Cards of a node and their link scores, as node annotations carry them.

Cards have two formats: a JSON array (NVIDIA and most vendors) and the older colon format (Hygon,
Iluvatar). The JSON is written with the field order, omissions and escapes of Go, so that HAMi's
agent and ours write the same bytes for the same cards; only floats within custominfo may differ.

Link scores have one entry for each card, with a score for every other card of the node: a sum over
the links between the two, where more is better (NVLink counts hundreds, PCIe tens). The device
plugin writes them, the topology policy reads them.

Any error refuses the whole annotation: cards that are missing may be in use. What a reader would
refuse is not written either.
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
_SCORES = "pair score annotation"
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


def encode_json(cards: Iterable[RegisteredCard]) -> str:
    """Write the JSON format; raise WireError for a card that could not be read back."""
    return codec.encode_text(_checked(cards, _WHAT))


def decode_colon(value: str, *, what: str = _WHAT) -> tuple[RegisteredCard, ...]:
    """Read the colon format, with seven or nine fields a card."""
    if ":" not in value:
        raise errors.WireError(what, value, "has no colon, which ends each card")
    records = (record for record in value.split(":") if record)
    return _checked((_colon_card(record, what) for record in records), what)


def encode_colon(cards: Iterable[RegisteredCard]) -> str:
    """Write the colon format, nine fields a card; WireError: a card could not be read back.

    It cannot carry MIG and custominfo. A lone colon is a node without cards: readers refuse an
    empty text.
    """
    return "".join(map(_colon_record, _checked(cards, _WHAT))) or ":"


def _colon_card(record: str, what: str) -> RegisteredCard:
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


def _colon_record(card: RegisteredCard) -> str:
    for text in (card.type, card.mode):
        if not shares.SEPARATORS.isdisjoint(text):
            raise errors.WireError(
                f"card {errors.shorten(card.id)}",
                text,
                "holds one of , : ; which the colon format cannot carry",
            )
    numbers = f"{card.count},{card.devmem},{card.devcore}"
    health = "true" if card.health else "false"
    return f"{card.id},{numbers},{card.type},{card.numa},{health},{card.index},{card.mode}:"


def _checked(cards: Iterable[RegisteredCard], what: str) -> tuple[RegisteredCard, ...]:
    """Return the cards; raise WireError if one breaks a rule that both formats share."""
    seen: dict[str, RegisteredCard] = {}
    for card in cards:
        if not card.id:
            raise errors.WireError(what, card.id, "is no card id: a card must have one")
        if not shares.SEPARATORS.isdisjoint(card.id):
            raise errors.WireError(what, card.id, "holds one of , : ; so no pod can be given it")
        if card.id in seen:
            raise errors.WireError(what, card.id, "is there twice")
        seen[card.id] = card
        _check_card(card, what)
    return tuple(seen.values())


def _check_card(card: RegisteredCard, what: str) -> None:
    for field in _TEXTS:
        text = getattr(card, field)
        if len(text) > _LONGEST_TEXT:
            raise errors.WireError(
                f"{what}, card {errors.shorten(card.id)}, {field}",
                text,
                f"has {len(text)} characters, at most {_LONGEST_TEXT} are allowed",
            )
    for field in _AMOUNTS:
        amount = getattr(card, field)
        if not 0 <= amount <= text_values.INT32_MAX:  # the text is made only if it is needed
            text_values.amount(amount, what=f"{what}, card {errors.shorten(card.id)}, {field}")
    if not -_INT16_MAX - 1 <= card.numa <= _INT16_MAX:
        subject = f"{what}, card {errors.shorten(card.id)}, numa"
        raise errors.WireError(subject, card.numa, "is outside 16 bits")
    for profile in card.mig_profiles:
        _check_profile(profile, f"{what}, card {errors.shorten(card.id)}")


def _check_profile(profile: MigProfile, what: str) -> None:
    what = f"{what}, MIG profile {errors.shorten(profile.name)}"
    text_values.amount(profile.memory, what=f"{what}, memoryMB")
    text_values.amount(profile.core, what=f"{what}, core")
    text_values.amount(profile.slice_count, what=f"{what}, sliceCount")
    for place in profile.placements:
        text_values.amount(place.start, what=f"{what}, start")
        text_values.amount(place.size, what=f"{what}, size")


class PairScores(codec.Object, frozen=True, omit_defaults=False):
    """The scores of one card."""

    uuid: str
    #: Score by the other card's UUID.
    score: dict[str, int]


def decode_scores(value: str, *, what: str = _SCORES) -> tuple[PairScores, ...]:
    """Read the scores of all cards of a node; a score that is null is 0."""
    return _checked_scores(codec.decode_go(value, list[PairScores], what=what), what)


def encode_scores(cards: Iterable[PairScores]) -> str:
    """Write the scores of all cards of a node; WireError: one could not be read back."""
    return codec.encode_text(_checked_scores(cards, _SCORES))


def _checked_scores(cards: Iterable[PairScores], what: str) -> tuple[PairScores, ...]:
    seen: dict[str, PairScores] = {}
    for card in cards:
        if not card.uuid:
            raise errors.WireError(what, card.uuid, "is no card id: an entry must name its card")
        if card.uuid in seen:
            raise errors.WireError(what, card.uuid, "is there twice")
        seen[card.uuid] = card
        for other, number in card.score.items():
            if abs(number) > text_values.INT32_MAX:
                pair = f"{errors.shorten(card.uuid)} and {errors.shorten(other)}"
                raise errors.WireError(f"{what}, score of {pair}", number, "is outside 32 bits")
    return tuple(seen.values())
