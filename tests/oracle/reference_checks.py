"""Checks of nodes and cards: sections 3 and 4 of docs/placement.md.

`check_node` refuses a node as a whole, `refuse_card` a card for one request. Which of the cards
that are left are taken, tests/oracle/reference_order.py decides.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

from hami.wire import objects, text_values
from tests.oracle.reference_cards import Card, State
from tests.oracle.reference_holdings import (
    allocatable_ids,
    cards_of,
    free_ids,
    held_ids,
)
from tests.oracle.reference_quota import Quota, Running, over_quota
from tests.oracle.reference_request import Request, tokens_of
from tests.oracle.reference_vendor import Ask, RefVendor, take_of


@dataclasses.dataclass(frozen=True)
class Case:
    """One question to the filter, after its pod was read."""

    wanted: Request
    vendors: Sequence[RefVendor]
    nodes: Mapping[str, objects.Node]
    #: By node name the pods that count: neither finished nor an earlier life of this one.
    pods_on: Mapping[str, list[objects.Pod]]
    #: The quota of the pod's namespace by vendor name.
    quotas: Mapping[str, Quota]
    traits: set[str]

    def state_of(self, name: str) -> State:
        """Return the node as it is without this pod; an unknown node has no cards."""
        node, pods = self.nodes.get(name), self.pods_on.get(name, [])
        return {v.name: cards_of(node, v, pods) if node else [] for v in self.vendors}


# Section 3: node checks.


def has_no_ids(case: Case, node: objects.Node, state: State, vendor: RefVendor) -> bool:
    if not state[vendor.name] or not (vendor.bounded_by_ids or vendor.needs_offer):
        return False
    return allocatable_ids(node, vendor) == 0


def has_no_card(case: Case, node: objects.Node, state: State, vendor: RefVendor) -> bool:
    return not state[vendor.name]


def has_too_few_cards(case: Case, node: objects.Node, state: State, vendor: RefVendor) -> bool:
    counts = [asks[vendor.name].count for asks in case.wanted.asks if vendor.name in asks]
    return max(counts) > len(state[vendor.name])


def has_too_few_ids(case: Case, node: objects.Node, state: State, vendor: RefVendor) -> bool:
    if not vendor.bounded_by_ids:
        return False
    return free_ids(node, vendor, case.pods_on.get(node.name, [])) < held_ids(
        case.wanted.pod, vendor
    )


NODE_CHECKS = (
    (has_no_ids, "node unregistered"),
    (has_no_card, "Device type not found"),
    (has_too_few_cards, "NodeInsufficientDevice"),
    (has_too_few_ids, "NodeInsufficientDevice"),
)


def check_node(case: Case, node: objects.Node | None, state: State) -> str | None:
    """Return the text that refuses the node as a whole, or None."""
    if node is None or not any(state.values()):
        return "node unregistered"
    for applies, text in NODE_CHECKS:
        for vendor in case.vendors:
            if case.wanted.wants(vendor) and applies(case, node, state, vendor):
                return text
    return None


# Section 4: card checks.


def type_accepted(card: Card, pod: objects.Pod, vendor: RefVendor) -> bool:
    use = tokens_of(pod, vendor.use_type)
    nouse = tokens_of(pod, vendor.nouse_type)
    if use and not any(text_values.matches_product(token, card.device.type) for token in use):
        return False
    return not any(text_values.matches_product(token, card.device.type) for token in nouse)


def mode_accepted(card: Card, pod: objects.Pod, vendor: RefVendor) -> bool:
    value = pod.annotation(vendor.mode)
    if not value.strip() or not card.device.mode:
        return True
    return card.device.mode in value


def uuid_accepted(card: Card, pod: objects.Pod, vendor: RefVendor) -> bool:
    use = tokens_of(pod, vendor.use_uuid)
    nouse = tokens_of(pod, vendor.nouse_uuid)
    if use and card.device.id not in use:
        return False
    return card.device.id not in nouse


def refuse_card(  # noqa: C901, PLR0911  the thirteen rows of the page, in its order
    case: Case, vendor: RefVendor, card: Card, ask: Ask, running: Running
) -> str | None:
    """Return the first reason against this card, or None: it is eligible."""
    wanted = case.wanted
    device = card.device
    take = take_of(vendor, device, ask)
    checks = vendor.checks
    if not device.health:
        return "CardNotHealth"
    if card.cordoned:
        return "CardCordoned"
    if not type_accepted(card, wanted.pod, vendor):
        return "CardTypeMismatch"
    if not mode_accepted(card, wanted.pod, vendor):
        return "ModeNotFit"
    if not uuid_accepted(card, wanted.pod, vendor):
        return "CardUuidMismatch"
    if "shares" in checks and card.shares >= device.count:
        return "CardTimeSlicingExhausted"
    if ("mutex" in wanted.gpu_words or "idle" in checks) and card.shares > 0:
        return "ExclusiveDeviceAllocateConflict"
    if over_quota(case.quotas[vendor.name], ask.count, take, running):
        return "ResourceQuotaNotFit"
    if "memory" in checks and device.devmem - card.memory < take.memory:
        return "CardInsufficientMemory"
    if "cores" in checks and device.devcore - card.cores < take.cores:
        return "CardInsufficientCore"
    if "exclusive" in checks and device.devcore == take.cores == 100 and card.shares > 0:
        return "ExclusiveDeviceAllocateConflict"
    no_compute = device.devcore != 0 and card.cores >= device.devcore
    if "exhausted" in checks and no_compute and take.cores == 0:
        return "CardComputeUnitsExhausted"
    return vendor.rule(card, ask) if vendor.rule is not None else None


def failure_text(reasons: list[str], cards: int) -> str:
    """Write the reasons (one per refused card) of a node."""
    items = [f"{reasons.count(reason)}/{cards} {reason}" for reason in set(reasons)]
    return ", ".join(sorted(items))
