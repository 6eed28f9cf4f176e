"""Annotations of ours on pods that do not decode, or that say what cannot be.

Pods that have ended are judged by their text alone: their cards may be others by now. A pod that
carries HAMi's annotations and is not bound holds nothing, but what it says must still be possible.
"""

from __future__ import annotations

from collections.abc import Iterator

from tests.e2e.auditor import malformed, nodes, pod_annotations, pods
from tests.e2e.auditor.evidence import Evidence, ResourceNames
from tests.e2e.auditor.findings import Finding, Kind
from tests.e2e.auditor.malformed import MalformedError
from tests.e2e.auditor.node_annotations import NVIDIA_REGISTER
from tests.e2e.auditor.nodes import Cards
from tests.e2e.auditor.pod_annotations import ALLOCATED, MAC, NODE, TO_ALLOCATE, Slot, Slots
from tests.e2e.auditor.pods import Container, Pod


def check(evidence: Evidence) -> Iterator[Finding]:
    registers = nodes.registers(evidence.nodes)
    for pod in map(Pod.of, evidence.pods):
        yield from _texts(pod)
        yield from _mac(pod, evidence.grant_keys)
        if pod.ended:
            continue
        yield from _place(pod)
        slots = pod.slots()
        yield from _shape(pod, slots)
        place = pod.node or pod.annotations.get(NODE, "")
        cards = registers.get(place)
        for container, slot in pods.by_container(pod, slots, evidence.resources.count):
            yield from _cards(pod, place, cards, slot)
            if container is not None:
                yield from _distinct(pod, container, cards or {}, slot)
                yield from _ask(pod, container, slot, cards or {}, evidence.resources)


def _texts(pod: Pod) -> Iterator[Finding]:
    for key, value in pod.annotations.items():
        try:
            _decode(key, value)
        except MalformedError as error:
            yield Finding(
                Kind.POD_ANNOTATION,
                f"{pod.subject} {key}",
                f"its value {malformed.shown(value)!r}: {error}",
            )


def _decode(key: str, value: str) -> None:
    if pod_annotations.is_device_list(key):
        pod_annotations.device_list(key, value)
    elif key in pod_annotations.TIMES:
        pod_annotations.unix_seconds(value)
    elif key == pod_annotations.MIG:
        pod_annotations.mig_allocations(value)
    elif key == NODE:
        malformed.dns_name(value, "node")
    elif key == pod_annotations.PHASE and value not in pod_annotations.PHASES:
        raise MalformedError(f"is none of {', '.join(sorted(pod_annotations.PHASES))}")


def _mac(pod: Pod, keys: tuple[bytes, ...]) -> Iterator[Finding]:
    value, devices = pod.annotations.get(MAC), pod.annotations.get(ALLOCATED)
    where = f"{pod.subject} {MAC}"
    if value is None:
        if keys and pod.live and devices is not None:
            yield Finding(Kind.GRANT_MAC, where, f"is missing; {ALLOCATED} is {devices!r}")
        return
    try:
        key_id = pod_annotations.mac_key_id(value)
    except MalformedError as error:
        yield Finding(Kind.GRANT_MAC, where, f"its value {malformed.shown(value)!r} {error}")
        return
    if devices is None:
        yield Finding(Kind.GRANT_MAC, where, f"is there, but no {ALLOCATED} that it vouches for")
    elif not pod.node:
        yield Finding(
            Kind.GRANT_UNBOUND,
            where,
            "a grant of ours is written together with the binding, yet the pod is on no node",
        )
    elif keys and not pod_annotations.mac_holds(
        keys, value, uid=pod.uid, node=pod.node, devices=devices
    ):
        yield Finding(
            Kind.GRANT_MAC,
            where,
            f"made with key {key_id}, it does not verify for this UID, node {pod.node} and "
            f"{ALLOCATED} {devices!r}",
        )


def _place(pod: Pod) -> Iterator[Finding]:
    said, label = pod.annotations.get(NODE), pod.labels.get(NODE)
    if pod.node and said is None and pod.annotations.get(ALLOCATED):
        yield Finding(
            Kind.GRANT_NODE, pod.subject, f"it has {ALLOCATED} and is bound, but has no {NODE}"
        )
    elif pod.node and said not in (None, pod.node):
        yield Finding(
            Kind.GRANT_NODE, pod.subject, f"{NODE} says {said}, spec.nodeName says {pod.node}"
        )
    if label is not None and label != said:
        yield Finding(
            Kind.GRANT_NODE, pod.subject, f"label {NODE} says {label}, the annotation says {said}"
        )


def _shape(pod: Pod, slots: Slots) -> Iterator[Finding]:
    containers = len(pod.containers)
    # HAMi leaves out empty places at times (docs/designs/006-hami-protocol.md); we do not.
    short = MAC in pod.annotations and bool(slots) and len(slots) < containers
    if len(slots) > containers or short:
        yield Finding(
            Kind.GRANT_SLOTS,
            f"{pod.subject} {ALLOCATED}",
            f"it has {len(slots)} slots for {containers} containers, init containers included",
        )
    try:
        rest = pod_annotations.device_list(TO_ALLOCATE, pod.annotations.get(TO_ALLOCATE, ""))
    except MalformedError:
        return
    for index, slot in enumerate(rest):
        granted = slots[index] if index < len(slots) else ()
        if slot and slot != granted:
            yield Finding(
                Kind.GRANT_REST,
                f"{pod.subject} {TO_ALLOCATE}",
                f"slot {index} is {_text(slot)}, {ALLOCATED} has {_text(granted)} there",
            )


def _cards(pod: Pod, place: str, cards: Cards | None, slot: Slot) -> Iterator[Finding]:
    where = f"{pod.subject} {ALLOCATED}"
    for grant in slot:
        card = (cards or {}).get(grant.card)
        if card is None:
            known = "registers no cards" if cards is None else f"registers {', '.join(cards)}"
            yield Finding(
                Kind.GRANT_CARD,
                where,
                f"it names {grant.card}; node {place or '(none)'} {known} ({NVIDIA_REGISTER})",
            )
        elif card.mode != "mig" and (grant.memory > card.memory or grant.cores > card.cores):
            yield Finding(
                Kind.GRANT_AMOUNT,
                where,
                f"{_text((grant,))} is more than the card's {card.memory} MiB and "
                f"{card.cores} % ({NVIDIA_REGISTER})",
            )


def _distinct(pod: Pod, container: Container, cards: Cards, slot: Slot) -> Iterator[Finding]:
    """Find a card that one container has twice; only a MIG card has several parts to give."""
    names = [grant.card for grant in slot]
    for name in dict.fromkeys(names):
        card = cards.get(name)
        if names.count(name) > 1 and not (card and card.mode == "mig"):
            yield Finding(
                Kind.GRANT_AMOUNT,
                f"{pod.subject} {ALLOCATED}",
                f"container {container.name} has {name} twice: {_text(slot)}",
            )


def _ask(
    pod: Pod, container: Container, slot: Slot, cards: Cards, names: ResourceNames
) -> Iterator[Finding]:
    """Compare a slot with what its container asks for. MIG cards grant by profile, not by ask."""
    where = f"{pod.subject} container {container.name}"
    if pod_annotations.MIG in pod.annotations:
        return
    count = container.ask(names.count)
    if len(slot) != count:
        yield Finding(
            Kind.GRANT_ASK,
            where,
            f"{ALLOCATED} grants it {len(slot)} cards, it asks for {names.count}: {count}",
        )
        return
    memory, percentage = container.ask(names.memory), container.ask(names.percentage)
    cores = min(container.ask(names.cores), 100)
    for grant in slot:
        card = cards.get(grant.card)
        wanted = memory
        if not wanted and percentage and card is not None:
            wanted = card.memory * percentage // 100
        if wanted and grant.memory != wanted:
            yield Finding(
                Kind.GRANT_ASK,
                where,
                f"{ALLOCATED} grants it {grant.memory} MiB of {grant.card}, it asks for {wanted} "
                f"({names.memory} {memory}, {names.percentage} {percentage})",
            )
        if cores and grant.cores != cores:
            yield Finding(
                Kind.GRANT_ASK,
                where,
                f"{ALLOCATED} grants it {grant.cores} % of {grant.card}, it asks for {cores} "
                f"({names.cores})",
            )


def _text(slot: Slot) -> str:
    return " ".join(f"{one.card},{one.memory},{one.cores}" for one in slot) or "(empty)"
