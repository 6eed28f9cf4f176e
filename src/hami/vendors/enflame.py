"""Enflame GCU: cards cut by profile (DRS), and cards shared by percent (HAMi 2.8).

Whole cards need no code: they are a row. A DRS node lists its cards and profiles
(`<slices>g.<GB>gb`) in one annotation, and a container gets the profile of its number of slices, or
the smallest with the memory and compute that it asks for. A node of HAMi 2.8 offers cards and their
slices as capacity; admission rounds percent up to whole slices. Both plugins read the pod's
annotations, and neither takes a lock.

All cards of a DRS node have the same profiles; they are kept as the mode of each card.
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Mapping
from typing import Any

import msgspec

from hami.vendors import card_request, container_edits
from hami.vendors.card_request import WHOLE_CARD, CardRequest
from hami.vendors.family import (
    Amount,
    CardSizes,
    CardState,
    Column,
    Fleet,
    Grant,
    Mask,
    Plain,
    Reason,
    capacity,
)
from hami.wire import codec, errors, objects, quantity, shares, text_values
from hami.wire.node_register import RegisteredCard

ASSIGNED = "enflame.com/gcu-assigned"
ASSIGNED_TIME = "enflame.com/gcu-assigned-time"
ASSIGNED_INDEX = "enflame.com/gcu-assigned-index"
ASSIGNED_ID = "enflame.com/gcu-assigned-id"
ASSIGNED_MINOR = "enflame.com/gcu-assigned-minor"
REQUEST_SIZE = "enflame.com/gcu-request-size"
CONTAINERS = "assigned-containers"
SHARED = "enflame.com/shared-gcu"
"""Slices of all cards of a node of HAMi 2.8, and of a container."""

SLICES = "slices"
_DRS_ID = "-enflame-drs-"
#: The id of a DRS card ends so; the name of its node, in front, may hold anything.
_DRS_CARD = re.compile(rf"{_DRS_ID}[0-9]+\Z")
_MIB_PER_GB = 1024
_MOST_PROFILES = 64
_MOST_SLICES = 128
_NUMBER = re.compile(r"[+-]?[0-9]{1,9}")


class Profile(msgspec.Struct, frozen=True):
    """A part of a card, as its name says."""

    name: str
    slices: int
    memory_gb: int
    #: Percent of the card, rounded up.
    cores: int


class DrsDevice(codec.Object, frozen=True):
    index: str = ""
    minor: str = ""
    capacity: int | float | str = 0


class DrsRegister(codec.Object, frozen=True):
    """The value of `enflame.com/gcu-drs-capacity`."""

    devices: tuple[DrsDevice, ...] = ()
    #: Name -> id.
    profiles: dict[str, str] = msgspec.field(default_factory=dict)


class AssignedContainer(codec.Object, frozen=True):
    """One container in the annotation `assigned-containers`; empty texts are omitted."""

    allocated: bool
    request: int
    profile_id: str = msgspec.field(name="profileID", default="")
    profile_name: str = ""


class _Request(codec.Object, frozen=True):
    request: int = 1


class Drs(Plain):
    """Cards that are cut by profile."""

    def asking(self) -> tuple[str, ...]:
        return self.vendor.resources.named()

    def complete(self, container: objects.Container, fleet: Fleet) -> objects.Container:  # noqa: ARG002 the protocol's
        """Write what is asked for into limits and requests; kubelet needs both."""
        names = self.vendor.resources
        asked = container.amount(names.count)
        wanted = [names.count] if asked is not None else [names.memory, names.cores]
        given = {name: found for name in wanted if name and (found := container.amount(name))}
        if not given:
            return container
        self.request(container)  # raises for what cannot be served
        resources = container.resources or objects.Resources()
        return container_edits.amounts(
            container,
            limits={k: v for k, v in given.items() if (resources.limits or {}).get(k) is None},
            requests={k: v for k, v in given.items() if (resources.requests or {}).get(k) is None},
        )

    def request(self, container: objects.Container) -> CardRequest | None:
        """Read slices, or memory and compute; it is one card always."""
        names = self.vendor.resources
        if container.amount(names.count) is not None:
            remedy = "write the slices of a profile, 3 for 3g.24gb"
            slices = self._positive(container, names.count, text_values.INT32_MAX, remedy)
            return CardRequest(self.vendor.name, 1, 0, 0, 0, slices)
        remedy = "write GB or MiB"
        memory = self._positive(container, names.memory, text_values.INT32_MAX, remedy)
        remedy = "write a whole number from 1 to 100"
        cores = self._positive(container, names.cores, WHOLE_CARD, remedy)
        return CardRequest(self.vendor.name, 1, memory, 0, cores) if memory or cores else None

    def _positive(self, container: objects.Container, resource: str, high: int, remedy: str) -> int:
        """Read an amount that is more than 0 if it is there at all; absent is 0."""
        asked = container.amount(resource) if resource else None
        if asked is None:
            return 0
        what = f"container {container.name}, {resource}"
        return quantity.exact_integer(asked, what=what, low=1, high=high, remedy=remedy)

    def count(self, container: objects.Container) -> int:
        return int(self.request(container) is not None)

    def decode_cards(
        self, node: objects.Node, value: str, *, what: str
    ) -> tuple[RegisteredCard, ...]:
        register = codec.decode_go(value, DrsRegister, what=what)
        sizes = [_sizes(name) for name in register.profiles]
        most_slices = max((slices for slices, _ in sizes), default=0)
        if (
            most_slices <= 0
            or len(sizes) > _MOST_PROFILES
            or any("," in p for p in register.profiles)
        ):
            rule = f"names no profile like 1g.8gb, or more than {_MOST_PROFILES}"
            raise errors.WireError(what, value, rule)
        memory = max(0, *(memory for _, memory in sizes)) or most_slices
        mode = f"{most_slices}:" + ",".join(sorted(register.profiles))
        cards = {}
        for place, device in enumerate(register.devices):
            index = int(device.index) if _NUMBER.fullmatch(device.index) else place
            count = _slices_of(device.capacity)
            if not 0 < count <= text_values.INT32_MAX or index < 0:
                rule = "is no number of slices, or its card has no index"
                raise errors.WireError(f"{what}, capacity", device.capacity, rule)
            if index in cards:
                raise errors.WireError(f"{what}, index", device.index, "is there twice")
            cards[index] = RegisteredCard(
                id=f"{node.name}{_DRS_ID}{index}",
                index=index,
                count=count,
                devmem=min(memory * _MIB_PER_GB, text_values.INT32_MAX),
                devcore=WHOLE_CARD,
                type=self.vendor.type_word,
                mode=mode,
                health=True,
                custominfo={
                    "minor": device.minor.strip() or str(index),
                    "profiles": register.profiles,
                },
            )
        return tuple(cards.values())

    def amounts(self, request: CardRequest, cards: CardSizes[Column]) -> Amount[Column | int]:
        """Take the profile that each card has for the request; without one, nothing."""

        def by_profile(number: Any) -> Column:
            def of_mode(mode: str) -> int:
                profile = _profile(mode, request)
                return int(number(profile)) if profile is not None else 0

            return cards.by_mode(of_mode)

        return Amount(
            by_profile(lambda profile: profile.memory_gb * _MIB_PER_GB),
            by_profile(lambda profile: profile.cores),
            by_profile(lambda profile: profile.slices),
        )

    def refuse(self, request: CardRequest, state: CardState[Mask]) -> Mapping[Reason, Mask]:
        """Refuse cards without a profile for the request, and with too few slices left."""
        return {
            Reason.MODE_NOT_FIT: state.where_mode(lambda mode: _profile(mode, request) is None),
            Reason.CARD_TIME_SLICING_EXHAUSTED: state.lacks_slots(
                lambda mode: found.slices if (found := _profile(mode, request)) else 0
            ),
        }

    def record(self, pod_shares: shares.PodShares, grant: Grant) -> dict[str, str]:
        written = {ASSIGNED: "false", ASSIGNED_TIME: _nanoseconds(grant.now)}
        assigned: dict[str, AssignedContainer] = {}
        for name, each in zip(grant.containers, pod_shares, strict=True):
            if not each:
                continue
            share = each[0]
            card = grant.cards[share.card]
            profile = _profile_of(card.mode, share)
            ids: Mapping[str, str] = card.custominfo["profiles"]
            assigned[name] = AssignedContainer(
                allocated=False,
                request=share.slots,
                profile_id=ids.get(profile, ""),
                profile_name=profile,
            )
            written.setdefault(ASSIGNED_INDEX, str(card.index))
            written.setdefault(ASSIGNED_ID, str(card.index))
            written.setdefault(ASSIGNED_MINOR, card.custominfo["minor"])
            written.setdefault(REQUEST_SIZE, str(share.slots))
        if assigned:
            in_order = {name: assigned[name] for name in sorted(assigned)}  # as Go writes a map
            written[CONTAINERS] = codec.encode_text(in_order)
        return written | super().record(pod_shares, grant)

    def recorded(self, pod_shares: shares.PodShares, pod: objects.Pod) -> shares.PodShares:
        """Take the shares of DRS cards, each with the slices that its container was assigned."""
        slices: dict[str, _Request] = {}
        try:
            value = pod.annotation(CONTAINERS) or "{}"
            slices = codec.decode_go(value, dict[str, _Request], what=CONTAINERS)
        except errors.WireError:
            pass  # memory and compute still count
        names = [container.name or "" for _, container in pod.containers()]
        return tuple(
            tuple(
                msgspec.structs.replace(share, slots=_slots(slices.get(name, _Request())))
                for share in each
                if _DRS_CARD.search(share.card)
            )
            for name, each in zip(names, pod_shares, strict=True)
        )


class Vgcu(Plain):
    """Cards that are shared by percent, as in HAMi 2.8."""

    def read_cards(self, node: objects.Node) -> tuple[RegisteredCard, ...]:
        cards = super().read_cards(node)
        if not cards:
            return cards
        slices = capacity(node, SHARED) // len(cards)
        return tuple(msgspec.structs.replace(card, custominfo={SLICES: slices}) for card in cards)

    def complete(self, container: objects.Container, fleet: Fleet) -> objects.Container:
        """Round percent up to whole slices, and ask kubelet for these."""
        names = self.vendor.resources
        limits = (container.resources and container.resources.limits) or {}
        slices = fleet.slices(self.vendor.name)
        count = limits.get(names.count)
        if count is None or not names.memory:
            return container
        cards = card_request.count(container, self.vendor)
        if cards > 1:
            every = {names.memory: str(WHOLE_CARD), SHARED: str(slices * cards)}
            return container_edits.limits_of(container, every)
        given = limits.get(names.memory)
        what = f"container {container.name}, {names.memory}"
        percent = WHOLE_CARD if given is None else quantity.rounded_up(given, what=what)
        taken = _slices_for(max(percent, 1), slices)
        if not taken:
            return container
        rounded = {names.memory: str(int(WHOLE_CARD / slices * taken)), SHARED: str(taken)}
        return container_edits.amounts(container, limits=rounded, requests=rounded)

    def record(self, pod_shares: shares.PodShares, grant: Grant) -> dict[str, str]:
        written = {ASSIGNED: "false", ASSIGNED_TIME: _nanoseconds(grant.now)}
        first = next((each for each in pod_shares if each), ())
        if first:
            written[ASSIGNED_ID] = ",".join(str(grant.cards[share.card].index) for share in first)
        return written | super().record(pod_shares, grant)

    def recorded(self, pod_shares: shares.PodShares, pod: objects.Pod) -> shares.PodShares:  # noqa: ARG002 the protocol's
        """Take the shares of all cards but DRS cards, which have the same annotation."""
        return tuple(
            tuple(share for share in each if not _DRS_CARD.search(share.card))
            for each in pod_shares
        )


def _slots(assigned: _Request) -> int:
    """Return the slices of a container; a user who may patch the pod can write any number."""
    return min(max(1, assigned.request), _MOST_SLICES)


def _slices_for(percent: int, slices: int) -> int:
    """Return how many of a card's slices percent are, rounded as HAMi does; 0: too many."""
    near = max(percent * slices // WHOLE_CARD, 1)  # a node may claim a billion slices
    found = (taken for taken in range(near, slices + 1) if percent <= WHOLE_CARD / slices * taken)
    return next(found, 0)


def _sizes(profile: str) -> tuple[int, int]:
    """Return slices and GB of a profile's name; 0 for what it does not tell."""
    parts = profile.strip().lower().split(".")
    slices = parts[0].strip().removesuffix("g")
    if len(parts) < 2 or not _NUMBER.fullmatch(slices):  # noqa: PLR2004 slices and memory
        return 0, 0
    memory = parts[1].strip().removesuffix("gb")
    return int(slices), int(memory) if _NUMBER.fullmatch(memory) else 0


@functools.lru_cache(maxsize=64)
def _profiles(mode: str) -> tuple[Profile, ...]:
    """Return the profiles of a card's mode, the smallest first."""
    most, _, names = mode.partition(":")
    found = [
        Profile(name, slices, memory, -(-slices * WHOLE_CARD // int(most)))
        for name in names.split(",")
        for slices, memory in [_sizes(name)]
        if slices > 0 and memory > 0
    ]
    return tuple(sorted(found, key=lambda profile: (profile.slices, profile.memory_gb)))


def _profile(mode: str, request: CardRequest) -> Profile | None:
    """Return the smallest profile that a request fits into."""
    profiles = _profiles(mode) if mode else ()
    if request.slices:
        return next((each for each in profiles if each.slices == request.slices), None)
    memory = request.memory
    if profiles and memory > 2 * profiles[-1].memory_gb:  # too much for GB: it means MiB
        memory = math.ceil(memory / _MIB_PER_GB)
    return next(
        (each for each in profiles if each.memory_gb >= memory and each.cores >= request.cores),
        None,
    )


def _profile_of(mode: str, share: shares.Share) -> str:
    size = (share.slots, share.memory_mib)
    return next(
        (each.name for each in _profiles(mode) if (each.slices, each.memory_gb * 1024) == size), ""
    )


def _slices_of(capacity: float | str) -> int:
    if isinstance(capacity, str):
        text = capacity.strip()
        return int(text) if _NUMBER.fullmatch(text) else 0
    return int(capacity) if abs(capacity) <= text_values.INT32_MAX else 0


def _nanoseconds(now: float) -> str:
    return str(int(now * 1e6) * 1000)
