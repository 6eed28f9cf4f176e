"""What a container that asks for cards is given to complete its request.

The number of cards where only memory or compute is named; all of a card's compute where a whole
card is asked for, so that nobody else gets onto it; variables that the library in the container
reads. A container without cards gets nothing, or is kept from seeing any (`overwriteEnv`).
"""

from __future__ import annotations

from hami.admission import edits
from hami.placement.request import WHOLE_CARD
from hami.vendors.device_config import NvidiaSettings
from hami.vendors.row import Vendor
from hami.wire import errors, quantity
from hami.wire.objects import Amount, Container

TASK_PRIORITY = "CUDA_TASK_PRIORITY"
CORE_POLICY = "GPU_CORE_UTILIZATION_POLICY"
VISIBLE_DEVICES = "NVIDIA_VISIBLE_DEVICES"
NO_DEVICES = "none"
_NVIDIA_DOMAIN = "nvidia.com/"


def completed(container: Container, vendor: Vendor) -> Container:
    """Return the container with what its request leaves open."""
    names = vendor.resources
    limits = (container.resources and container.resources.limits) or {}
    sizes = (names.cores, names.memory, names.memory_percentage)
    given: dict[str, Amount] = {}
    if limits.get(names.count) is None:
        asked = container.amount(names.count)
        if asked is not None and wants(container, vendor):
            # The API server wants a limit for what is requested of such a resource.
            given[names.count] = asked
        elif asked is None and vendor.default_count and any(n and n in limits for n in sizes):
            given[names.count] = str(vendor.default_count)
    if given:
        container = edits.amounts(container, limits=given)
    if wants(container, vendor) and _wants_whole_cards(container, vendor):
        container = edits.amounts(container, limits={names.cores: str(WHOLE_CARD)})
    return container


def wants(container: Container, vendor: Vendor) -> bool:
    """Whether a container asks for cards of this vendor; `0` is what those write who want none."""
    amount = container.amount(vendor.resources.count)
    return amount is not None and not _is(amount, 0)


def _wants_whole_cards(container: Container, vendor: Vendor) -> bool:
    """Whether it names no part of a card, and no compute either."""
    names = vendor.resources
    if not names.cores or container.amount(names.cores) is not None:
        return False
    percentage = container.amount(names.memory_percentage) if names.memory_percentage else None
    if percentage is not None:
        return _is(percentage, WHOLE_CARD)
    return not names.memory or container.amount(names.memory) is None


def with_variables(container: Container, vendor: Vendor, settings: NvidiaSettings) -> Container:
    """Return a container with cards and what the library in it reads."""
    priority = vendor.resources.priority
    amount = container.amount(priority) if priority else None
    if amount is not None:
        number = quantity.exact_integer(
            amount,
            what=f"container {container.name}, {priority}",
            remedy="write a whole number; 0 is the highest priority",
        )
        container = edits.variable(container, TASK_PRIORITY, str(number))
    if settings.gpu_core_policy != "default":
        container = edits.variable(container, CORE_POLICY, settings.gpu_core_policy)
    return container


def hidden(container: Container, vendor: Vendor) -> Container:
    """Return a container that sees no card, unless it asks for one in a way we do not know."""
    # Whoever offers nvidia.com/mig-1g.10gb or nvidia.com/gpu.shared hands cards out by this name;
    # beside such a plugin ours may go by another.
    domains = (vendor.resources.count.partition("/")[0] + "/", _NVIDIA_DOMAIN)
    resources = container.resources
    parts = (resources.limits, resources.requests) if resources else ()
    if any(name.startswith(domains) for amounts in parts for name in amounts or ()):
        return container
    return edits.variable(container, VISIBLE_DEVICES, NO_DEVICES)


def _is(amount: Amount, number: int) -> bool:
    try:
        return quantity.parse(amount, what="") == number
    except errors.WireError:
        return False
