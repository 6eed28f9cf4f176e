"""Shares of cards: a pod's device lists, and what its containers hold at once.

Which cards each container of a pod was given, as pod annotations carry it.
One slot per container, init containers first, each ended by `;`; in a slot one record
`UUID,TYPE,memory,cores` per card, each ended by `:`. Containers without a card have an empty slot,
so the position of a slot is the position of its container. HAMi omits empty slots on real NVIDIA
nodes (its issue 2899); the reader of the ledger copes with that, this codec only with the text.

How much a pod holds while its containers come and go.
Init containers run one after the other and end; sidecars start among them and stay; app containers
run together at the end. So a pod needs the largest sum that is ever alive at one time, and
Kubernetes counts the pod's resources the same way. Everything that adds up a pod (cards, quota,
device ids, node score) uses this one function.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from hami.wire import codec, errors, text_values
from hami.wire.objects import ContainerKind

_FIELDS = 4
#: Percent.
WHOLE_CARD = 100
#: What ends fields, records and slots, so that no field can hold it.
SEPARATORS = frozenset(",:;")


class Share(codec.Object, frozen=True):
    """One container's part of one card."""

    #: UUID of the card.
    card: str
    #: The vendor's common word, for AMD the product type.
    vendor: str
    memory_mib: int
    #: Percent of the card that is reserved; 0 reserves nothing.
    cores: int

    @property
    def memory_bytes(self) -> int:
        return self.memory_mib << 20

    @property
    def core_limit(self) -> int | None:
        """Percent of the card's time that the container may use; None is no limit.

        Decided only here: nothing and everything are both no limit. The policy file writes 0 for
        it, metrics show 100.
        """
        return self.cores if 0 < self.cores < WHOLE_CARD else None


PodShares = tuple[tuple[Share, ...], ...]
"""One tuple of grants per container, in container order."""


def encode(slots: Iterable[Iterable[Share]]) -> str:
    """Write all slots of a pod; what could not be read back is an error."""
    return "".join("".join(map(_encode_grant, slot)) + ";" for slot in slots)


def decode(value: str, *, what: str = "device list") -> PodShares:
    """Read all slots of a pod; the empty rest after the last `;` is no slot.

    Records without a comma are skipped and fields after the fourth ignored, as HAMi does. A
    record with an empty UUID (old writers put `,,0,0:` into empty slots) grants nothing.
    """
    return tuple(_decode_slot(part, what) for part in _parts(value))


def salvage(value: str) -> tuple[PodShares, tuple[str, ...]]:
    """Read what can be read of a list that `decode` refuses: grants, and ids of damaged records.

    A bound pod runs on its cards whatever happened to its annotation since. If one damaged record
    took all of them out of the ledger, they would be handed out a second time. So the readable
    grants count, and the cards of unreadable ones are named: how much of them is in use is unknown.
    Never raises; a list that `decode` reads comes back the same, with no id.
    """
    slots: list[tuple[Share, ...]] = []
    damaged: list[str] = []
    for part in _parts(value):
        grants: list[Share] = []
        for record in _records(part):
            try:
                grants.append(_decode_grant(record, "device list"))
            except errors.WireError:
                damaged.append(record.partition(",")[0])
        slots.append(tuple(grant for grant in grants if grant.card))
    return tuple(slots), tuple(uuid for uuid in damaged if uuid)


def _parts(value: str) -> list[str]:
    parts = value.split(";")
    if not parts[-1]:
        parts.pop()
    return parts


def _records(part: str) -> Iterator[str]:
    return (record for record in part.split(":") if "," in record)


def _encode_grant(grant: Share) -> str:
    what = f"grant of card {errors.shorten(grant.card)}"
    if not grant.card:
        raise errors.WireError(what, grant.card, "is no card id: a reader would skip the grant")
    for text in (grant.card, grant.vendor):
        if not SEPARATORS.isdisjoint(text):
            raise errors.WireError(
                what, text, "holds one of , : ; which the device list cannot carry"
            )
    memory = text_values.amount(grant.memory_mib, what=f"{what}, memory")
    cores = text_values.amount(grant.cores, what=f"{what}, cores")
    return f"{grant.card},{grant.vendor},{memory},{cores}:"


def _decode_slot(text: str, what: str) -> tuple[Share, ...]:
    grants = (_decode_grant(record, what) for record in _records(text))
    return tuple(grant for grant in grants if grant.card)


def _decode_grant(record: str, what: str) -> Share:
    fields = record.split(",")
    if len(fields) < _FIELDS:
        raise errors.WireError(
            what, record, "has fewer than the four fields UUID,TYPE,memory,cores"
        )
    uuid, kind, memory, cores = fields[:_FIELDS]
    try:
        return Share(card=uuid, vendor=kind, memory_mib=_amount(memory), cores=_amount(cores))
    except errors.WireError as error:
        # Named only now: a ledger is rebuilt from a hundred thousand of these.
        raise errors.WireError(
            f"{what}, card {errors.shorten(uuid)}", record, f"is no grant: {error}"
        ) from error


def _amount(text: str) -> int:
    return text_values.amount(text_values.parse_int32(text, what="amount"), what="amount")


def peak(steps: Iterable[tuple[ContainerKind, int]], *, init_done: bool = False) -> int:
    """Return the largest amount alive at once, for (kind, amount) in container order.

    Once the init containers have ended they count nothing; sidecars still do.
    """
    running = top = 0
    for kind, amount in steps:
        if kind is not ContainerKind.INIT:
            running += amount
        elif not init_done:
            top = max(top, running + amount)
    return max(top, running)


def align(slots: PodShares, counts: Sequence[int]) -> PodShares:
    """Give each container its slot, although the writer may have left empty slots out.

    HAMi omits the slots of containers without a card on real NVIDIA nodes. Where the list does not
    fit by position, its non-empty slots go to the containers that ask for cards, in order; where
    that does not fit either, everything counts for the last (app) container, so that
    nothing is ever given back early.
    """
    if not counts:
        return ()
    filled = [slot for slot in slots if slot]
    asking = [index for index, count in enumerate(counts) if count]
    padded = (*slots, *[()] * (len(counts) - len(slots)))
    surplus = any(padded[len(counts) :])
    if not surplus and [len(slot) for slot in padded[: len(counts)]] == list(counts):
        return padded[: len(counts)]
    aligned: list[tuple[Share, ...]] = [()] * len(counts)
    if [len(slot) for slot in filled] == [counts[index] for index in asking]:
        for index, slot in zip(asking, filled, strict=True):
            aligned[index] = slot
    else:
        aligned[-1] = tuple(grant for slot in filled for grant in slot)
    return tuple(aligned)
