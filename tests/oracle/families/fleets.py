"""Random fleets of several vendors, pods on them, an incoming pod.

Every scenario has a family as its subject: the incoming pod asks for its cards. In many a second
family is on the same nodes, and now and then the pod asks for both. All vendors are known to both
sides, as in the product. Placed pods hold what the reference says they take.
"""

from __future__ import annotations

import dataclasses
import random

import msgspec

from hami.wire import annotation_keys as keys
from hami.wire import errors, objects
from tests.oracle import reference
from tests.oracle.families.family import Amounts, Family, Registered
from tests.oracle.families.registry import FAMILIES, VENDORS, family
from tests.oracle.reference_admission import admit
from tests.oracle.reference_cards import Card
from tests.oracle.reference_holdings import cards_of
from tests.oracle.reference_request import read_ask
from tests.oracle.reference_unproven import FORGED
from tests.oracle.reference_vendor import Ask, Grant, RefVendor, take_of
from tests.oracle.scenario_containers import pick_kinds, pod_spec
from tests.oracle.scenario_draft import NAMESPACE, UID
from tests.oracle.scenario_tape import Tape
from tests.oracle.scenarios import Scenario

_TAPE = 2048


@dataclasses.dataclass
class Fleet:
    """A scenario while it is made."""

    tape: Tape
    #: The subject first, each with the vendors whose cards nodes have.
    families: list[tuple[Family, list[RefVendor]]]
    nodes: list[objects.Node] = dataclasses.field(default_factory=list)
    pods: list[objects.Pod] = dataclasses.field(default_factory=list)

    def pods_on(self, node: str) -> list[objects.Pod]:
        return [pod for pod in self.pods if pod.node_name == node]

    def some_card(self, vendor: RefVendor) -> Card | None:
        """Pick a card whose room gives a request its size."""
        cards = [
            card for node in self.nodes for card in cards_of(node, vendor, self.pods_on(node.name))
        ]
        return self.tape.pick(cards) if cards else None


def draw(name: str, number: int) -> Scenario:
    """Draw a scenario of a family; the same number is the same scenario."""
    return make(name, random.Random(f"{name}/{number}").randbytes(_TAPE))


def make(name: str, data: bytes) -> Scenario:
    """Build a scenario from a tape, from the nodes over the placed pods to the incoming one."""
    tape = Tape(data)
    fleet = Fleet(tape, _families(tape, name))
    for letter in "bacd"[: tape.pick((2, 1, 3, 2, 4))]:
        fleet.nodes.append(_node(fleet, f"node-{letter}"))
    for node in fleet.nodes:
        for _ in range(tape.pick((1, 2, 0, 3, 4, 6))):
            _add_pod(fleet, node)
    pod = _incoming(fleet)
    return Scenario(
        vendors=VENDORS,
        nodes=fleet.nodes,
        pods=fleet.pods,
        quotas=_quotas(fleet),
        pod=pod,
        names=[node.name for node in fleet.nodes],
        node_policy=tape.pick(("binpack", "spread")),
        gpu_policy=tape.pick(("spread", "spread", "binpack", "mutex", "numa", "binpack,numa")),
        pods_first=tape.chance(20),
        key=data[: tape.position],
        admits=True,
    )


def _families(tape: Tape, name: str) -> list[tuple[Family, list[RefVendor]]]:
    chosen = [family(name)]
    others = [each for each in FAMILIES if each.name != name]
    if tape.chance(50):
        chosen += tape.subset(others, tape.pick((1, 1, 2, 3)))
    return [(each, tape.subset(each.vendors, tape.pick((1, 1, 2)))) for each in chosen]


# Nodes.


def _node(fleet: Fleet, name: str) -> objects.Node:
    """Draw a node; often it is registered like the first one, which makes ties."""
    tape = fleet.tape
    like_first = tape.chance(40)
    annotations: dict[str, str | None] = {}
    capacity: Amounts = {"cpu": "64"}
    allocatable: Amounts = {"cpu": "64"}
    for number, (kind, vendors) in enumerate(fleet.families):
        if tape.chance(10 if number == 0 else 35):
            continue
        vendor = tape.pick(vendors)
        own = Tape(tape.data[number * 40 :]) if like_first else tape
        found = _broken(tape, kind.node(own, name, vendor))
        annotations |= found.annotations
        capacity |= found.capacity
        allocatable |= found.capacity if found.allocatable is None else found.allocatable
    return objects.Node(
        metadata=objects.Metadata(name=name, annotations=annotations),
        status=objects.NodeStatus(capacity=capacity, allocatable=allocatable),
    )


def _broken(tape: Tape, found: Registered) -> Registered:
    """Break one register in thirty: that vendor has no cards there, others have theirs."""
    if not tape.chance(3):
        return found
    nonsense = tape.pick(("nonsense", "[{]", ""))
    return Registered(
        annotations=dict.fromkeys(found.annotations, nonsense),
        capacity=dict.fromkeys(found.capacity, "0"),
    )


# Pods that are there already.


def _add_pod(fleet: Fleet, node: objects.Node) -> None:
    """Put a pod onto a node: with a grant, with a forged one, or without any."""
    tape = fleet.tape
    kind, vendors = tape.pick(fleet.families)
    vendor = tape.pick(vendors)
    kinds = pick_kinds(tape, several=20)
    cards = cards_of(node, vendor, fleet.pods_on(node.name))
    amounts = [kind.request(tape, vendor, tape.pick(cards)) if cards else {} for _ in kinds]
    number = len(fleet.pods)
    spec = pod_spec(kinds, amounts, node=node.name)
    pod = _pod(f"pod-{number}", f"uid-{number}", tape.pick((NAMESPACE, "other")), spec)
    try:
        pod = admit(pod, VENDORS, fleet.nodes)
        asks = [read_ask(container, vendor) for _, container in pod.containers()]
    except errors.WireError:
        return
    given = []
    for ask in asks:
        count = ask.count if ask is not None else 0
        fitting = [card for card in cards if ask is not None and _has_room(vendor, card, ask)]
        taken = sorted(tape.subset(fitting, count), key=lambda card: card.column)
        if len(taken) < count:
            return
        given.append(taken)
    if not any(given):
        return
    shares = tuple(
        tuple(
            reference.share_of(vendor, card, take_of(vendor, card.device, ask))
            for card in each
            if ask is not None
        )
        for ask, each in zip(asks, given, strict=True)
    )
    grant = Grant(
        containers=reference.names_of(pod),
        shares=shares,
        cards={card.device.id: card.device for card in cards},
    )
    annotations: dict[str, str | None] = {}
    if not tape.chance(8):
        annotations |= reference.annotations_of(vendor, grant)
        annotations[keys.ASSIGNED_NODE] = node.name
        if tape.chance(8):
            annotations[keys.GRANT_MAC] = FORGED
    assert pod.metadata is not None
    metadata = msgspec.structs.replace(pod.metadata, annotations=annotations)
    fleet.pods.append(msgspec.structs.replace(pod, metadata=metadata))


def _has_room(vendor: RefVendor, card: Card, ask: Ask) -> bool:
    take = take_of(vendor, card.device, ask)
    return (
        0 < take.shares <= card.device.count - card.shares
        and take.memory <= card.device.devmem - card.memory
        and take.cores <= card.device.devcore - card.cores
    )


def _pod(name: str, uid: str, namespace: str, spec: objects.PodSpec) -> objects.Pod:
    metadata = objects.Metadata(name=name, namespace=namespace, uid=uid, annotations={})
    return objects.Pod(metadata=metadata, spec=spec, status=objects.PodStatus(phase="Running"))


# The incoming pod.


def _incoming(fleet: Fleet) -> objects.Pod:
    tape = fleet.tape
    kinds = pick_kinds(tape, several=30)
    asking = tape.below(len(kinds))
    containers = []
    for index, _ in enumerate(kinds):
        amounts: Amounts = {}
        for number, (kind, vendors) in enumerate(fleet.families):
            if tape.chance((100 if index == asking else 40) if number == 0 else 12):
                vendor = vendors[0] if tape.chance(80) else tape.pick(kind.vendors)
                amounts |= kind.request(tape, vendor, fleet.some_card(vendor))
        containers.append(amounts)
    place = tape.pick(("limits", "equal", "equal", "equal", "equal", "limits", "requests"))
    spec = pod_spec(kinds, containers, node=None, place=place)
    pod = _pod("incoming", UID, NAMESPACE, spec)
    assert pod.metadata is not None
    metadata = msgspec.structs.replace(pod.metadata, annotations=_selectors(fleet))
    return msgspec.structs.replace(pod, metadata=metadata, status=None)


def _selectors(fleet: Fleet) -> dict[str, str | None]:
    """Draw what the user says of cards and policies."""
    tape = fleet.tape
    chosen: dict[str, str | None] = {}
    vendor = fleet.families[0][1][0]
    card = fleet.some_card(vendor) if tape.chance(20) else None
    if card is not None:
        key = tape.pick((vendor.use_uuid, vendor.nouse_uuid, vendor.use_type, vendor.nouse_type))
        is_id = key in (vendor.use_uuid, vendor.nouse_uuid)
        text = card.device.id if is_id else card.device.type.split("-")[0]
        if key:
            chosen[key] = tape.pick((text, f" {text} , other", "other", ","))
    if tape.chance(15):
        chosen[keys.GPU_POLICY] = tape.pick(("binpack", "spread", "mutex", "numa,spread"))
    if tape.chance(10):
        chosen[keys.NODE_POLICY] = tape.pick(("binpack", "spread"))
    if tape.chance(10):
        chosen[keys.SCORING_WEIGHTS] = tape.pick(
            ("slot=1,core=0,memory=0", "slot=0,core=2,memory=5")
        )
    if vendor.numa_bind and tape.chance(20):
        chosen[vendor.numa_bind] = "true"
    return chosen


def _quotas(fleet: Fleet) -> list[objects.ResourceQuota]:
    tape = fleet.tape
    hard: Amounts = {}
    for vendor in (each for _, vendors in fleet.families for each in vendors):
        if vendor.memory and tape.chance(20):
            hard[f"limits.{vendor.memory}"] = tape.pick(("64", "256", "40960", "100000", "0"))
        if vendor.cores and tape.chance(20):
            hard[f"limits.{vendor.cores}"] = tape.pick(("100", "60", "200", "400", "0"))
    metadata = objects.Metadata(name="quota", namespace=NAMESPACE)
    return [objects.ResourceQuota(metadata=metadata, spec=objects.QuotaSpec(hard=hard))]
