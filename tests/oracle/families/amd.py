"""AMD: percent of compute units, limits alone, lists with the product."""

from __future__ import annotations

from hami.wire import errors, node_register, objects
from tests.oracle.families import registering
from tests.oracle.families.family import Amounts, Family, Registered
from tests.oracle.reference_cards import Card
from tests.oracle.reference_request import read_amount, read_plain_ask
from tests.oracle.reference_vendor import Ask, RefVendor, Take, plain_take
from tests.oracle.scenario_tape import Tape

_REGISTER = "hami.io/node-amd-register"


def _read_ask(container: objects.Container) -> Ask | None:
    """Read a request; percent of compute, if given, are 1 to 100."""
    ask = read_plain_ask(container, AMD)
    percent = read_amount(container, AMD, AMD.cores) if ask is not None else None
    if percent is not None and not 1 <= percent <= 100:
        raise errors.WireError(AMD.cores, percent, "is no percentage from 1 to 100")
    return ask


def _takes(card: node_register.RegisteredCard, ask: Ask) -> Take:
    units = card.devcore * ask.cores // 100
    return Take(plain_take(card, ask).memory, units if units > 0 else 1)


AMD = RefVendor(
    name="AMD",
    count="amd.com/gpu",
    memory="amd.com/gpumem",
    cores="amd.com/gpucores",
    default_cores=100,
    reads_requests=False,
    register=_REGISTER,
    to_allocate="hami.io/amd-devices-to-allocate",
    allocated="hami.io/amd-devices-allocated",
    use_type="amd.com/use-gputype",
    nouse_type="amd.com/nouse-gputype",
    use_uuid="amd.com/use-gpu-uuid",
    nouse_uuid="amd.com/nouse-gpu-uuid",
    checks=("shares", "memory", "cores"),
    enforces_quota=False,
    bounded_by_ids=False,
    needs_offer=True,
    read_ask=_read_ask,
    takes=_takes,
    word_of=lambda card: card.type,
)


def _node(tape: Tape, name: str, vendor: RefVendor) -> Registered:
    listed = registering.cards(
        tape,
        f"AMD-{name}",
        types=("AMD Instinct MI300X", "AMD Instinct MI210", "AMD-MI250"),
        memories=(65536, 131072, 196608),
        cores=(304, 104, 228, 7, 0, 100),
    )
    offered = registering.offer(tape, vendor, len(listed))
    return Registered(annotations={_REGISTER: registering.as_json(listed)}, capacity=offered)


def _request(tape: Tape, vendor: RefVendor, card: Card | None) -> Amounts:
    amounts: Amounts = {vendor.count: str(tape.pick(registering.COUNTS))}
    amounts |= registering.sizes(tape, vendor, card, cores=(10, 25, 50, 1, 5, 33, 100))
    if tape.chance(6):
        amounts[vendor.cores] = tape.pick(("0", "0", "101", "1.5"))
    return amounts


FAMILY = Family(name="amd", vendors=(AMD,), node=_node, request=_request)
