"""Cambricon MLU: cards of capacity, memory in units, a profile."""

from __future__ import annotations

from hami.wire import node_register, objects
from tests.oracle.families import registering
from tests.oracle.families.family import Amounts, Family, Registered
from tests.oracle.reference_cards import Card
from tests.oracle.reference_vendor import Grant, RefVendor
from tests.oracle.scenario_tape import Tape

_UNIT = 256
_MEMORY = "cambricon.com/mlu.smlu.vmemory"
_CORES = "cambricon.com/mlu.smlu.vcore"


def _read_cards(node: objects.Node) -> list[node_register.RegisteredCard]:
    """Make a card of every 100 percent of compute, and one of a rest."""
    compute = registering.capacity_of(node, _CORES)
    if compute == 0:
        return []
    memory = registering.capacity_of(node, _MEMORY) * _UNIT * 100 // compute
    return [
        node_register.RegisteredCard(
            id=f"{node.name}-cambricon-mlu-{index}",
            index=index,
            count=100,
            devmem=memory,
            devcore=100,
            type="MLU",
            health=True,
        )
        for index in range((compute + 99) // 100)
    ]


def _record(grant: Grant) -> dict[str, str]:
    _, first = grant.in_order()[0]
    index = grant.cards[first.card].index
    profile = f"{index}_{first.cores}_{first.memory_mib // _UNIT}"
    return {"CAMBRICON_DSMLU_ASSIGNED": "false", "CAMBRICON_DSMLU_PROFILE": profile}


MLU = RefVendor(
    name="MLU",
    count="cambricon.com/vmlu",
    memory=_MEMORY,
    cores=_CORES,
    memory_factor=_UNIT,
    default_cores=100,
    to_allocate="hami.io/cambricon-mlu-devices-to-allocate",
    allocated="hami.io/cambricon-mlu-devices-allocated",
    use_uuid="cambricon.com/use-gpuuuid",
    nouse_uuid="cambricon.com/nouse-gpuuuid",
    bounded_by_ids=False,
    read_cards=_read_cards,
    record=_record,
)


def _node(tape: Tape, _name: str, vendor: RefVendor) -> Registered:
    number = tape.pick((2, 1, 3, 4))
    compute = number * 100 - tape.pick((0, 0, 0, 50))
    units = tape.pick((64, 96, 128, 192)) * number + tape.pick((0, 0, 1))
    capacity: Amounts = {vendor.count: str(number * 100), _CORES: str(compute)}
    return Registered(capacity=capacity | {_MEMORY: str(units)})


def _request(tape: Tape, vendor: RefVendor, card: Card | None) -> Amounts:
    count: Amounts = {vendor.count: str(tape.pick(registering.COUNTS))}
    return count | registering.sizes(tape, vendor, card)


FAMILY = Family(name="cambricon", vendors=(MLU,), node=_node, request=_request)
