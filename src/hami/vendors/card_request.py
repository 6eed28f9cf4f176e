"""A container's request for cards of one vendor, read strictly.

The rules are in docs/placement.md, section 1. A value that breaks one is an error that names
container, resource, value, rule and remedy.
"""

from __future__ import annotations

import msgspec

from hami.vendors.table import Vendor
from hami.wire import objects, quantity, shares, text_values

WHOLE_CARD = shares.WHOLE_CARD
"""Percent of a card's memory or compute that is all of it."""


class CardRequest(msgspec.Struct, frozen=True, omit_defaults=True, rename={"vendor": "word"}):
    """Cards of one vendor for one container, each with the same share."""

    #: Name of the vendor; `hami explain` in JSON calls it `word`.
    vendor: str
    count: int
    #: MiB; 0: `percentage` decides.
    memory: int
    #: Of the card's memory; 0 where `memory` is given.
    percentage: int
    #: Percent of compute; 0 is unlimited.
    cores: int
    #: Equal parts of a card, where the vendor cuts cards so; 0: the rest decides.
    slices: int = 0

    @property
    def whole(self) -> bool:
        """Whether it is cards for itself alone: nothing to share, so nothing to limit."""
        return self.percentage == WHOLE_CARD and self.cores == WHOLE_CARD


def read(container: objects.Container, vendor: Vendor) -> CardRequest | None:
    """Read what a container asks for; None: no card of the vendor. Raises WireError."""
    names = vendor.resources
    cards = count(container, vendor)
    if not cards:
        return None
    factor = max(vendor.memory_factor, 1)
    memory = factor * whole_number(
        container,
        vendor,
        names.memory,
        high=text_values.INT32_MAX // factor,
        remedy=f"write it in units of {factor} MiB, for example {16384 // factor} for 16 GiB",
    )
    percentage = whole_number(
        container,
        vendor,
        names.memory_percentage,
        high=WHOLE_CARD,
        remedy="write a whole number from 1 to 100",
    )
    if not memory and not percentage:
        memory = vendor.default_memory
    cores = vendor.default_cores
    if names.cores and amount(container, vendor, names.cores) is not None:
        remedy = "write a whole number from 1 to 100, or 0 for no limit"
        cores = whole_number(container, vendor, names.cores, remedy=remedy)
    return CardRequest(
        vendor=vendor.name,
        count=cards,
        memory=memory,
        percentage=0 if memory else percentage or WHOLE_CARD,
        cores=min(cores, WHOLE_CARD),
    )


def count(container: objects.Container, vendor: Vendor) -> int:
    """Return how many cards a container asks for; raises WireError for what is no number."""
    remedy = "ask for a whole number of cards"
    return whole_number(container, vendor, vendor.resources.count, remedy=remedy)


def amount(container: objects.Container, vendor: Vendor, resource: str) -> objects.Amount | None:
    """Return what a container asks for of a resource; None: nothing."""
    if vendor.reads_requests:
        return container.amount(resource)
    limits = container.resources and container.resources.limits
    return limits.get(resource) if limits else None


def whole_number(
    container: objects.Container,
    vendor: Vendor,
    resource: str,
    *,
    high: int = text_values.INT32_MAX,
    remedy: str,
) -> int:
    """Read a resource of a container; absent is 0."""
    asked = amount(container, vendor, resource) if resource else None
    if asked is None:
        return 0
    what = f"container {container.name}, {resource}"
    return quantity.exact_integer(asked, what=what, high=high, remedy=remedy)
