"""Shares of cards: the share itself, a pod's device list, and a pod's peak.

A device list is the annotation that names the cards of each container of a pod: one part for each
container, init containers first, each ended by `;`; in it one record `UUID,TYPE,memory,cores` for
each card, ended by `:`. A container without a card has an empty part, so the index of a part is
the index of its container. HAMi omits empty parts on real NVIDIA nodes (its issue 2899): `align`
gives each container its own again, the codec reads the text as it is.

Init containers run one after the other and end, sidecars start among them and stay, app containers
run together at the end. So a pod holds the largest sum that is alive at one time, and Kubernetes
counts a pod's resources the same way. All sums over a pod (cards, quota, device ids, node score)
use `peak`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

from hami.wire import codec, errors, text_values
from hami.wire.objects import ContainerKind

#: Percent.
WHOLE_CARD = 100
#: Characters that end fields, records and parts, so that no field can hold them.
SEPARATORS = frozenset(",:;")

_FIELDS = 4
#: The list of one container with one card, which nearly all pods have; 9 digits always fit.
_ONE_CARD = re.compile(r"([^,:;]+),([^,:;]*),([0-9]{1,9}),([0-9]{1,9}):;")
_MIB = 20
_NVIDIA = "NVIDIA"


class Share(codec.Object, frozen=True):
    """One container's part of one card."""

    #: UUID of the card.
    card: str
    #: The vendor name; for AMD the product type.
    vendor: str
    memory_mib: int
    #: Percent of the card that is reserved, or its compute units; 0 reserves nothing.
    cores: int
    #: How many of the card's shares it is; the device list does not carry it.
    slots: int = 1

    @classmethod
    def from_limits(cls, card: str, *, memory_bytes: int, cores: int) -> Share:
        """Make the share that a library in a container enforces; both libraries are for NVIDIA.

        Bytes that are no whole number of MiB are rounded up, so that a limit stays one.
        """
        mib = -(-memory_bytes >> _MIB)
        return cls(card=card, vendor=_NVIDIA, memory_mib=mib, cores=cores)

    @property
    def memory_bytes(self) -> int:
        return self.memory_mib << _MIB

    @property
    def core_limit(self) -> int | None:
        """Percent of the card's time that the container may use; None is no limit.

        Decided only here: nothing and everything are both no limit. The policy file has 0 for it,
        metrics show 100.
        """
        return self.cores if 0 < self.cores < WHOLE_CARD else None


PodShares = tuple[tuple[Share, ...], ...]
"""A pod's shares: one tuple for each container, init containers first."""


def encode(containers: Iterable[Iterable[Share]]) -> str:
    """Write a pod's device list; raise WireError for a share that could not be read back."""
    return "".join("".join(map(_encode_share, each)) + ";" for each in containers)


def decode(value: str, *, what: str = "device list") -> PodShares:
    """Read a pod's device list; `what` names it in a WireError.

    The empty rest after the last `;` is no container. Records without a comma are skipped and
    fields after the fourth ignored, as HAMi does. A record with an empty UUID (old writers put
    `,,0,0:` where a container has no card) is no share.
    """
    # A scheduler reads a hundred thousand at its start: this is a third of the time of the rest.
    if (one := _ONE_CARD.fullmatch(value)) is not None:
        card, vendor, memory, cores = one.groups()
        return ((Share(card, vendor, int(memory), int(cores)),),)
    return tuple(_decode_container(part, what) for part in _parts(value))


def salvage(value: str) -> tuple[PodShares, tuple[str, ...]]:
    """Read a list that `decode` refuses: its readable shares, and the cards of damaged records.

    A bound pod runs on its cards, also when its annotation was damaged since. If one damaged record
    hid all of them, they would be handed out a second time. So readable shares count, and the cards
    of damaged records are named: how much of them is in use is unknown. Never raises; of a list
    that `decode` reads, the result is the same, with no card.
    """
    containers: list[tuple[Share, ...]] = []
    damaged: list[str] = []
    for part in _parts(value):
        found: list[Share] = []
        for record in _records(part):
            try:
                found.append(_decode_share(record, "device list"))
            except errors.WireError:
                damaged.append(record.partition(",")[0])
        containers.append(tuple(share for share in found if share.card))
    return tuple(containers), tuple(card for card in damaged if card)


def align(pod_shares: PodShares, counts: Sequence[int]) -> PodShares:
    """Give each container its shares, although the writer may have left empty parts out.

    `counts` are the cards that each container asks for. Where the list does not fit by index, its
    non-empty parts go to the containers that ask for cards, in order; where that does not fit
    either, all shares count for the last (app) container, so that none is freed early.
    """
    if not counts:
        return ()
    if [len(each) for each in pod_shares] == list(counts):
        return pod_shares  # as nearly all are
    filled = [each for each in pod_shares if each]
    asking = [index for index, count in enumerate(counts) if count]
    padded = (*pod_shares, *[()] * (len(counts) - len(pod_shares)))
    surplus = any(padded[len(counts) :])
    if not surplus and [len(each) for each in padded[: len(counts)]] == list(counts):
        return padded[: len(counts)]
    aligned: list[tuple[Share, ...]] = [()] * len(counts)
    if [len(each) for each in filled] == [counts[index] for index in asking]:
        for index, each in zip(asking, filled, strict=True):
            aligned[index] = each
    else:
        aligned[-1] = tuple(share for each in filled for share in each)
    return tuple(aligned)


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


def _parts(value: str) -> list[str]:
    """Split a device list into the texts of its containers."""
    parts = value.split(";")
    if not parts[-1]:
        parts.pop()
    return parts


def _records(part: str) -> Iterator[str]:
    return (record for record in part.split(":") if "," in record)


def _encode_share(share: Share) -> str:
    what = f"share of card {errors.shorten(share.card)}"
    if not share.card:
        raise errors.WireError(what, share.card, "is no card id: a reader would skip the share")
    for text in (share.card, share.vendor):
        if not SEPARATORS.isdisjoint(text):
            raise errors.WireError(
                what, text, "has one of the characters , : ; which the device list cannot carry"
            )
    memory = text_values.amount(share.memory_mib, what=f"{what}, memory")
    cores = text_values.amount(share.cores, what=f"{what}, cores")
    return f"{share.card},{share.vendor},{memory},{cores}:"


def _decode_container(part: str, what: str) -> tuple[Share, ...]:
    found = (_decode_share(record, what) for record in _records(part))
    return tuple(share for share in found if share.card)


def _decode_share(record: str, what: str) -> Share:
    fields = record.split(",")
    if len(fields) < _FIELDS:
        raise errors.WireError(
            what, record, "has fewer than the four fields UUID,TYPE,memory,cores"
        )
    card, vendor, memory, cores = fields[:_FIELDS]
    try:
        return Share(card=card, vendor=vendor, memory_mib=_amount(memory), cores=_amount(cores))
    except errors.WireError as error:
        # The text is made only now: a scheduler reads a hundred thousand records when it starts.
        raise errors.WireError(
            f"{what}, card {errors.shorten(card)}", record, f"is no share: {error}"
        ) from error


def _amount(text: str) -> int:
    return text_values.amount(text_values.parse_int32(text, what="amount"), what="amount")
