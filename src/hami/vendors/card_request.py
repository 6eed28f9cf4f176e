"""A container's request for cards of one vendor, read strictly.

The rules are in docs/placement.md, section 1. A value that breaks one is an error that names
container, resource, value, rule and remedy.
"""

from __future__ import annotations

from hami.vendors.family import WHOLE_CARD, CardRequest
from hami.vendors.table import Vendor
from hami.wire import objects, quantity, text_values


def read(container: objects.Container, vendor: Vendor) -> CardRequest | None:
    """Read what a container asks for; None: no card of the vendor. Raises WireError."""
    names = vendor.resources
    count = _whole_number(container, names.count, remedy="ask for a whole number of cards")
    if not count:
        return None
    factor = max(vendor.memory_factor, 1)
    memory = factor * _whole_number(
        container,
        names.memory,
        high=text_values.INT32_MAX // factor,
        remedy=f"write it in units of {factor} MiB, for example {16384 // factor} for 16 GiB",
    )
    percentage = _whole_number(
        container,
        names.memory_percentage,
        high=WHOLE_CARD,
        remedy="write a whole number from 1 to 100",
    )
    if not memory and not percentage:
        memory = vendor.default_memory
    cores = vendor.default_cores
    if names.cores and container.amount(names.cores) is not None:
        remedy = "write a whole number from 1 to 100, or 0 for no limit"
        cores = _whole_number(container, names.cores, remedy=remedy)
    return CardRequest(
        vendor=vendor.name,
        count=count,
        memory=memory,
        percentage=0 if memory else percentage or WHOLE_CARD,
        cores=min(cores, WHOLE_CARD),
    )


def _whole_number(
    container: objects.Container,
    resource: str,
    *,
    high: int = text_values.INT32_MAX,
    remedy: str,
) -> int:
    """Read a resource of a container; absent is 0."""
    amount = container.amount(resource) if resource else None
    if amount is None:
        return 0
    what = f"container {container.name}, {resource}"
    return quantity.exact_integer(amount, what=what, high=high, remedy=remedy)
