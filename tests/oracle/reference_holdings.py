"""The cards of nodes and what pods hold: sections 2 and 7 of docs/placement.md.

Everything is added up from the annotations of pods and nodes at every question; there is no kept
state that could be wrong. tests/oracle/reference_checks.py asks for the result.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from hami.wire import errors, node_register, objects, quantity, shares, text_values
from tests.oracle.reference_cards import Card
from tests.oracle.reference_request import Kind, read_count
from tests.oracle.reference_unproven import (
    is_forged,
    is_unproven,
    listed_shares,
    unproven_shares,
)
from tests.oracle.reference_vendor import RefVendor

# Section 7: what a pod holds.


def peak(series: Iterable[tuple[Kind, int]]) -> int:
    running = 0
    highest = 0
    for kind, amount in series:
        if kind is Kind.INIT:
            highest = max(highest, running + amount)
        else:
            running += amount
    return max(highest, running)


def held_shares(pod: objects.Pod, vendor: RefVendor) -> list[tuple[Kind, tuple[shares.Share, ...]]]:
    """Return what each container holds now: init containers that are all done hold nothing."""
    held = []
    for (kind, _), each in zip(pod.containers(), listed_shares(pod, vendor), strict=True):
        held.append((kind, () if kind is Kind.INIT and pod.init_done else each))
    return held


def is_granted(pod: objects.Pod, vendor: RefVendor) -> bool:
    return bool(pod.annotation(vendor.allocated)) and not is_forged(pod)


def held_ids(pod: objects.Pod, vendor: RefVendor) -> int:
    return peak((kind, read_count(container, vendor)) for kind, container in pod.containers())


# Section 2: what a node has.


def by_node(pods: Iterable[objects.Pod]) -> dict[str, list[objects.Pod]]:
    """Group pods by the node they are on, so that not all pods are searched for every node."""
    groups: dict[str, list[objects.Pod]] = {}
    for pod in pods:
        groups.setdefault(pod.node_name, []).append(pod)
    return groups


def cards_of(node: objects.Node, vendor: RefVendor, pods: Sequence[objects.Pod]) -> list[Card]:
    """Return the cards of a vendor by column, with what the pods on the node use."""
    devices = read_cards(node, vendor)
    devices.sort(key=lambda device: (device.index, device.id))
    cordoned = list(text_values.comma_list(node.annotation(vendor.cordon)))
    cards = [
        Card(device, column, device.id in cordoned or "all" in cordoned)
        for column, device in enumerate(devices)
    ]
    for pod in pods:
        if is_granted(pod, vendor):
            add_pod(cards, held_shares(pod, vendor))
    for pod in sorted(pods, key=lambda pod: pod.uid):
        if is_unproven(pod, vendor):
            add_pod(cards, unproven_shares(pod, vendor, cards))
    return cards


def read_cards(node: objects.Node, vendor: RefVendor) -> list[node_register.RegisteredCard]:
    """Read the cards in any order; of a register that does not decode there are none."""
    try:
        if vendor.read_cards is not None:
            return vendor.read_cards(node)
        value = node.annotation(vendor.register)
        return list(node_register.decode_json(value)) if value else []
    except errors.WireError:
        return []


def add_pod(cards: list[Card], held: list[tuple[Kind, tuple[shares.Share, ...]]]) -> None:
    """Add to each card the pod's peaks of shares, memory and cores on it."""
    for card in cards:
        counts: list[tuple[Kind, int]] = []
        memory: list[tuple[Kind, int]] = []
        cores: list[tuple[Kind, int]] = []
        for kind, grants in held:
            here = [grant for grant in grants if grant.card == card.device.id]
            counts.append((kind, max((grant.slots for grant in here), default=0)))
            memory.append((kind, sum(grant.memory_mib for grant in here)))
            cores.append((kind, sum(grant.cores for grant in here)))
        card.shares += peak(counts)
        card.memory += peak(memory)
        card.cores += peak(cores)


def allocatable_ids(node: objects.Node, vendor: RefVendor) -> int:
    amount = node.allocatable.get(vendor.count)
    if amount is None:
        return 0
    return quantity.exact_integer(amount, what=f"allocatable {vendor.count}")


def free_ids(node: objects.Node, vendor: RefVendor, pods: Sequence[objects.Pod]) -> int:
    """Return what the pods on the node leave of its ids."""
    held = sum(held_ids(pod, vendor) for pod in pods)
    return allocatable_ids(node, vendor) - held
