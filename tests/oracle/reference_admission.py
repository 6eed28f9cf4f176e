"""The pod as admission leaves it: docs/vendors.md, *What differs*.

Containers are completed one by one, each by the vendors in the order of the table.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from hami.wire import objects
from tests.oracle.reference_holdings import read_cards
from tests.oracle.reference_vendor import RefVendor

SLICES = "slices"
"""Into how many parts a node cuts a card, in the card's custominfo."""


def admit(
    pod: objects.Pod, vendors: Sequence[RefVendor], nodes: Sequence[objects.Node]
) -> objects.Pod:
    """Complete the containers of a pod; raises WireError for what cannot be served."""
    spec = pod.spec or objects.PodSpec()

    def complete(container: objects.Container | None) -> objects.Container | None:
        for vendor in vendors:
            if container is not None and vendor.admit is not None:
                container = vendor.admit(container, slices_of(vendor, nodes))
        return container

    inits = spec.init_containers
    changed = msgspec.structs.replace(
        spec,
        containers=[complete(container) for container in spec.containers or ()],
        init_containers=[complete(container) for container in inits] if inits else inits,
    )
    return msgspec.structs.replace(pod, spec=changed)


def slices_of(vendor: RefVendor, nodes: Sequence[objects.Node]) -> int:
    """Return the most parts into which any node cuts a card; 0: no node says."""
    cards = [card for node in nodes for card in read_cards(node, vendor)]
    return max((card.custominfo.get(SLICES, 0) for card in cards), default=0)


def with_amounts(
    container: objects.Container,
    *,
    limits: dict[str, objects.Amount | None],
    requests: dict[str, objects.Amount | None],
) -> objects.Container:
    """Set limits and requests beside those that are there."""
    before = container.resources or objects.Resources()
    resources = msgspec.structs.replace(
        before,
        limits={**(before.limits or {}), **limits} if before.limits or limits else before.limits,
        requests=(
            {**(before.requests or {}), **requests}
            if before.requests or requests
            else before.requests
        ),
    )
    return msgspec.structs.replace(container, resources=resources)


def limits_of(container: objects.Container) -> dict[str, objects.Amount | None]:
    return (container.resources and container.resources.limits) or {}


def requests_of(container: objects.Container) -> dict[str, objects.Amount | None]:
    return (container.resources and container.resources.requests) or {}
