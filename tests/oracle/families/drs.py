"""Enflame DRS: cards cut by profile, the smallest that is enough."""

from __future__ import annotations

import json
import re

import msgspec

from hami.wire import errors, node_register, objects, quantity, shares
from tests.oracle.families.family import Amounts, Family, Registered
from tests.oracle.reference_admission import limits_of, requests_of, with_amounts
from tests.oracle.reference_cards import Card
from tests.oracle.reference_vendor import NOW, Ask, Grant, RefVendor, Take
from tests.oracle.scenario_tape import Tape

_REGISTER = "enflame.com/gcu-drs-capacity"
_COUNT, _MEMORY, _CORES = "enflame.com/drs-gcu", "enflame.com/gcu-memory", "enflame.com/gcu-core"
_CONTAINERS = "assigned-containers"
_PROFILES = (
    {"1g.8gb": "0", "2g.16gb": "1", "3g.24gb": "2", "6g.48gb": "3"},
    {"1g.8gb": "1", "3g.24gb": "3", "6g.48gb": "6"},
    {"2g.16gb": "10", "4g.32gb": "20"},
    {"1g.12gb": "a", "1g.6gb": "b", "2g.24gb": "c", "3g.24gb": "d", "7g.48gb": "e"},
    {"2g.48gb": "x", "3g.16gb": "y", "6g.24gb": "z"},
)


def _sizes(name: str) -> tuple[int, int]:
    """Return slices and GB of a profile."""
    found = re.fullmatch(r"(\d+)g\.(\d+)gb", name)
    assert found, name
    return int(found[1]), int(found[2])


def _read_cards(node: objects.Node) -> list[node_register.RegisteredCard]:
    value = node.annotation(_REGISTER)
    try:
        register = json.loads(value or "{}")
    except ValueError as error:
        raise errors.WireError(_REGISTER, value, "is no JSON") from error
    profiles = register.get("profiles", {})
    return [
        node_register.RegisteredCard(
            id=f"{node.name}-enflame-drs-{device['index']}",
            index=int(device["index"]),
            count=int(device["capacity"]),
            devmem=1024 * max(_sizes(name)[1] for name in profiles),
            devcore=100,
            type="Enflame",
            health=True,
            custominfo={"minor": device["minor"], "profiles": profiles},
        )
        for device in register.get("devices", ())
    ]


def _positive(container: objects.Container, resource: str, high: int = 2**31 - 1) -> int:
    """Read an amount of which 0 is an error; absent is 0."""
    amount = container.amount(resource)
    if amount is None:
        return 0
    return quantity.exact_integer(amount, what=resource, low=1, high=high)


def _read_ask(container: objects.Container) -> Ask | None:
    """Read slices, else memory and compute; it is one card always."""
    if container.amount(_COUNT) is not None:
        return Ask(1, 0, 0, 0, slices=_positive(container, _COUNT))
    memory, cores = _positive(container, _MEMORY), _positive(container, _CORES, 100)
    return Ask(1, memory, 0, cores) if memory or cores else None


def _admit(container: objects.Container, _slices: int) -> objects.Container:
    """Write what is asked for into limits and requests."""
    if _read_ask(container) is None:
        return container
    by_slices = container.amount(_COUNT) is not None
    limits: Amounts = {}
    requests: Amounts = {}
    for resource in [_COUNT] if by_slices else [_MEMORY, _CORES]:
        amount = container.amount(resource)
        if amount is not None and resource not in limits_of(container):
            limits[resource] = amount
        if amount is not None and resource not in requests_of(container):
            requests[resource] = amount
    return with_amounts(container, limits=limits, requests=requests)


def _cores(profiles: dict[str, str], name: str) -> int:
    """Return percent of the card, rounded up; the largest profile has all."""
    most = max(_sizes(each)[0] for each in profiles)
    return (_sizes(name)[0] * 100 + most - 1) // most


def _profile(card: node_register.RegisteredCard, ask: Ask) -> str | None:
    profiles = card.custominfo["profiles"]
    memory = ask.memory
    largest = max(profiles, key=_sizes)  # that with the most slices, whatever its memory
    if memory > 2 * _sizes(largest)[1]:
        memory = (memory + 1023) // 1024  # MiB, not GB
    for name in sorted(profiles, key=_sizes):
        slices, gigabytes = _sizes(name)
        if ask.slices:
            if slices == ask.slices:
                return str(name)
        elif gigabytes >= memory and _cores(profiles, name) >= ask.cores:
            return str(name)
    return None


def _takes(card: node_register.RegisteredCard, ask: Ask) -> Take | None:
    name = _profile(card, ask)
    if name is None:
        return None
    slices, gigabytes = _sizes(name)
    return Take(gigabytes * 1024, _cores(card.custominfo["profiles"], name), slices)


def _rule(card: Card, ask: Ask) -> str | None:
    take = _takes(card.device, ask)
    if take is None:
        return "ModeNotFit"
    if card.shares + take.shares > card.device.count:
        return "CardTimeSlicingExhausted"
    return None


def _held(pod: objects.Pod, listed: shares.PodShares) -> shares.PodShares:
    """Take the shares of DRS cards, each with the slices of its container."""
    assigned = json.loads(pod.annotation(_CONTAINERS) or "{}")
    held = []
    for (_, container), each in zip(pod.containers(), listed, strict=True):
        slices = assigned.get(container.name, {}).get("request", 1)
        here = (share for share in each if re.search(r"-enflame-drs-\d+$", share.card))
        held.append(tuple(msgspec.structs.replace(share, slots=slices) for share in here))
    return tuple(held)


def _record(grant: Grant) -> dict[str, str]:
    """Name the first card, and of each container the profile."""
    shares_ = grant.in_order()
    first = grant.cards[shares_[0][1].card]
    containers = {}
    for name, share in sorted(shares_, key=lambda pair: pair[0]):
        profiles = grant.cards[share.card].custominfo["profiles"]
        size = (share.slots, share.memory_mib // 1024)
        (profile,) = (each for each in profiles if _sizes(each) == size)
        containers[name] = {
            "allocated": False,
            "request": share.slots,
            "profileID": profiles[profile],
            "profileName": profile,
        }
    return {
        "enflame.com/gcu-assigned": "false",
        "enflame.com/gcu-assigned-time": f"{NOW}000000000",
        "enflame.com/gcu-assigned-index": str(first.index),
        "enflame.com/gcu-assigned-id": str(first.index),
        "enflame.com/gcu-assigned-minor": first.custominfo["minor"],
        "enflame.com/gcu-request-size": str(shares_[0][1].slots),
        _CONTAINERS: json.dumps(containers, separators=(",", ":")),
    }


DRS = RefVendor(
    name="Enflame",
    count=_COUNT,
    memory=_MEMORY,
    cores=_CORES,
    register=_REGISTER,
    allocated="hami.io/enflame-vgpu-devices-allocated",
    use_uuid="enflame.com/use-gpuuuid",
    nouse_uuid="enflame.com/nouse-gpuuuid",
    checks=("shares", "memory", "cores"),
    enforces_quota=False,
    bounded_by_ids=False,
    read_cards=_read_cards,
    admit=_admit,
    read_ask=_read_ask,
    takes=_takes,
    rule=_rule,
    held=_held,
    record=_record,
)


def _node(tape: Tape, _name: str, vendor: RefVendor) -> Registered:
    profiles = tape.pick(_PROFILES)
    most = max(_sizes(name)[0] for name in profiles)
    devices = []
    for index in range(tape.pick((2, 1, 3))):
        capacity = most if tape.chance(80) else most - 1
        device = {"index": str(index), "minor": str(index + tape.pick((0, 8)))}
        devices.append({**device, "capacity": str(capacity) if tape.chance(30) else capacity})
    value = json.dumps({"devices": devices, "profiles": profiles})
    return Registered(
        annotations={_REGISTER: value}, capacity={vendor.count: str(most * len(devices))}
    )


def _request(tape: Tape, _vendor: RefVendor, card: Card | None) -> Amounts:
    profiles = card.device.custominfo["profiles"] if card is not None else _PROFILES[0]
    slices, gigabytes = _sizes(tape.pick(sorted(profiles)))
    how = tape.below(100)
    if how < 35:
        return {_COUNT: str(tape.pick((slices, slices, slices, slices + 1, 0)))}
    amounts: Amounts = {}
    if how < 85:
        memory = max(gigabytes - tape.pick((0, 0, 1, 3)), 1)
        exact = tape.pick((memory, memory, memory * 1024, memory * 1024 + 1, 2 * gigabytes))
        amounts[_MEMORY] = str(exact)
    if how >= 65:
        percent = slices * 100 // max(_sizes(name)[0] for name in profiles)
        amounts[_CORES] = str(max(percent + tape.pick((0, 0, 1, -1)), 0))
    return amounts


FAMILY = Family(name="drs", vendors=(DRS,), node=_node, request=_request)
