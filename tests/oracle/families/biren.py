"""Biren: data alone; a share has neither memory nor compute."""

from __future__ import annotations

from hami.wire import node_register, objects
from tests.oracle.families import registering
from tests.oracle.families.family import Amounts, Family, Registered
from tests.oracle.reference_cards import Card
from tests.oracle.reference_vendor import Ask, RefVendor, Take
from tests.oracle.scenario_tape import Tape

_REGISTER = "hami.io/node-biren-register"


def _read_cards(node: objects.Node) -> list[node_register.RegisteredCard]:
    """Read the register; every card counts as 100 percent of compute."""
    value = node.annotation(_REGISTER)
    listed = node_register.decode_json(value) if value else ()
    fields = ("id", "index", "count", "devmem", "type", "numa", "mode", "health")
    return [
        node_register.RegisteredCard(devcore=100, **{name: getattr(card, name) for name in fields})
        for card in listed
    ]


def _takes(_card: node_register.RegisteredCard, _ask: Ask) -> Take:
    return Take(0, 0)


BIREN = RefVendor(
    name="Biren",
    count="birentech.com/gpu",
    register=_REGISTER,
    to_allocate="hami.io/Biren-devices-to-allocate",
    allocated="hami.io/Biren-devices-allocated",
    use_uuid="birentech.com/use-gpuuuid",
    nouse_uuid="birentech.com/nouse-gpuuuid",
    checks=("shares",),
    enforces_quota=False,
    bounded_by_ids=False,
    needs_offer=True,
    read_cards=_read_cards,
    takes=_takes,
)


def _node(tape: Tape, name: str, vendor: RefVendor) -> Registered:
    listed = registering.cards(
        tape,
        f"Biren-{name}",
        types=("Biren166M", "Biren106C"),
        memories=(32768, 65536),
        cores=(0, 100),
        counts=(1, 1, 2, 4),
    )
    value = registering.as_json(listed)
    offered = registering.offer(tape, vendor, len(listed))
    return Registered(annotations={_REGISTER: value}, capacity=offered)


def _request(tape: Tape, vendor: RefVendor, _card: Card | None) -> Amounts:
    return {vendor.count: str(tape.pick(registering.COUNTS))}


FAMILY = Family(name="biren", vendors=(BIREN,), node=_node, request=_request)
