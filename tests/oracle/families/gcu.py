"""Enflame GCU: whole cards of capacity, each for one container."""

from __future__ import annotations

from hami.wire import node_register, objects
from tests.oracle.families import registering
from tests.oracle.families.family import Amounts, Family, Registered
from tests.oracle.reference_cards import Card
from tests.oracle.reference_vendor import RefVendor
from tests.oracle.scenario_tape import Tape

_COUNT = "enflame.com/gcu"


def _read_cards(node: objects.Node) -> list[node_register.RegisteredCard]:
    return [
        node_register.RegisteredCard(
            id=f"{node.name}-GCU-{index}",
            index=index,
            count=1,
            devmem=100,
            devcore=100,
            type="GCU",
            health=True,
        )
        for index in range(registering.capacity_of(node, _COUNT))
    ]


GCU = RefVendor(
    name="GCU",
    count=_COUNT,
    default_cores=100,
    to_allocate="hami.io/enflame-gcu-devices-to-allocate",
    allocated="hami.io/enflame-gcu-devices-allocated",
    checks=("idle",),
    enforces_quota=False,
    bounded_by_ids=False,
    read_cards=_read_cards,
)


def _node(tape: Tape, _name: str, _vendor: RefVendor) -> Registered:
    return Registered(capacity={_COUNT: str(tape.pick((2, 3, 4, 1, 8)))})


def _request(tape: Tape, vendor: RefVendor, _card: Card | None) -> Amounts:
    return {vendor.count: str(tape.pick((1, 2, 1, 3, 4)))}


FAMILY = Family(name="gcu", vendors=(GCU,), node=_node, request=_request)
