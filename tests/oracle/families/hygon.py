"""Hygon DCU: data alone, with a register of colons."""

from __future__ import annotations

from tests.oracle.families import registering
from tests.oracle.families.family import Amounts, Family, Registered
from tests.oracle.reference_cards import Card
from tests.oracle.reference_vendor import RefVendor
from tests.oracle.scenario_tape import Tape

_REGISTER = "hami.io/node-dcu-register"
DCU = RefVendor(
    name="DCU",
    count="hygon.com/dcunum",
    memory="hygon.com/dcumem",
    cores="hygon.com/dcucores",
    default_cores=100,
    register=_REGISTER,
    to_allocate="hami.io/dcu-devices-to-allocate",
    allocated="hami.io/dcu-devices-allocated",
    use_type="hygon.com/use-dcutype",
    nouse_type="hygon.com/nouse-dcutype",
    use_uuid="hygon.com/use-gpuuuid",
    nouse_uuid="hygon.com/nouse-gpuuuid",
    enforces_quota=False,
    bounded_by_ids=False,
    needs_offer=True,
    read_cards=lambda node: registering.read_colons(_REGISTER, node),
)


def _node(tape: Tape, name: str, vendor: RefVendor) -> Registered:
    listed = registering.cards(
        tape,
        f"DCU-{name}",
        types=("DCU-K100", "DCU-Z100L", "DCU-K100_AI"),
        memories=(16384, 32768, 65520),
        cores=(100, 100, 60, 120),
    )
    offered = registering.offer(tape, vendor, sum(card["count"] for card in listed))
    return Registered(annotations={_REGISTER: registering.as_colons(listed)}, capacity=offered)


def _request(tape: Tape, vendor: RefVendor, card: Card | None) -> Amounts:
    count: Amounts = {vendor.count: str(tape.pick(registering.COUNTS))}
    return count | registering.sizes(tape, vendor, card)


FAMILY = Family(name="hygon", vendors=(DCU,), node=_node, request=_request)
