"""Iluvatar: a row for each model; several cards are whole ones."""

from __future__ import annotations

import functools

import msgspec

from hami.wire import objects, quantity
from tests.oracle.families import registering
from tests.oracle.families.family import Amounts, Family, Registered
from tests.oracle.reference_admission import limits_of, requests_of, with_amounts
from tests.oracle.reference_cards import Card
from tests.oracle.reference_vendor import RefVendor
from tests.oracle.scenario_tape import Tape

_NAME = "SOL_CONTINER_NAME"


def _admit(model: str, container: objects.Container, _slices: int) -> objects.Container:
    """Ask for all compute of several cards, and name the container to the plugin."""
    count = limits_of(container).get(f"iluvatar.ai/{model}-vgpu")
    if count is None:
        return container
    cards = quantity.rounded_up(count, what=model)
    if cards > 1:
        resource = f"iluvatar.ai/{model}.vCore"
        every: Amounts = {resource: str(100 * cards)}
        there = resource in requests_of(container)
        container = with_amounts(container, limits=every, requests=every if there else {})
    env = list(container.env or ())
    if container.name and all(variable is None or variable.name != _NAME for variable in env):
        env.append(objects.EnvVar(name=_NAME, value=container.name))
        container = msgspec.structs.replace(container, env=env)
    return container


def _row(model: str) -> RefVendor:
    register = f"hami.io/node-{model}-register"
    return RefVendor(
        name=model,
        count=f"iluvatar.ai/{model}-vgpu",
        memory=f"iluvatar.ai/{model}.vMem",
        cores=f"iluvatar.ai/{model}.vCore",
        memory_factor=256,
        register=register,
        to_allocate=f"hami.io/{model}-devices-to-allocate",
        allocated=f"hami.io/{model}-devices-allocated",
        use_uuid=f"hami.io/use-{model}-uuid",
        nouse_uuid=f"hami.io/no-use-{model}-uuid",
        enforces_quota=False,
        bounded_by_ids=False,
        needs_offer=True,
        read_cards=functools.partial(registering.read_colons, register),
        admit=functools.partial(_admit, model),
    )


MODELS = tuple(_row(model) for model in ("MR-V100", "MR-V50", "BI-V150", "BI-V100"))


def _node(tape: Tape, name: str, vendor: RefVendor) -> Registered:
    listed = registering.cards(
        tape,
        f"GPU-{vendor.name}-{name}",
        types=(f"Iluvatar {vendor.name}", vendor.name),
        memories=(16384, 32768, 65536),
        counts=(10, 4, 100, 1),
    )
    offered = registering.offer(tape, vendor, sum(card["count"] for card in listed))
    written = registering.as_colons(listed)
    return Registered(annotations={vendor.register: written}, capacity=offered)


def _request(tape: Tape, vendor: RefVendor, card: Card | None) -> Amounts:
    count: Amounts = {vendor.count: str(tape.pick(registering.COUNTS))}
    return count | registering.sizes(tape, vendor, card)


FAMILY = Family(name="iluvatar", vendors=MODELS, node=_node, request=_request)
