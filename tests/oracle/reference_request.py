"""The request of a pod: section 1 of docs/placement.md.

`read_request` reads the whole pod, strictly: a broken rule is a `WireError`. What follows from it
is checked in tests/oracle/reference_checks.py and the modules after it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from hami.wire import annotation_keys as keys
from hami.wire import errors, objects, quantity, text_values
from tests.oracle.reference_vendor import Ask, RefVendor

INT32_MAX = 2**31 - 1
GPU_POLICIES = ("binpack", "spread", "mutex", "numa", "topology-aware")

Kind = objects.ContainerKind


@dataclasses.dataclass(frozen=True)
class Weights:
    slot: int = 1
    core: int = 1
    memory: int = 1


@dataclasses.dataclass(frozen=True)
class Request:
    """The whole request of a pod, read once."""

    pod: objects.Pod
    kinds: list[Kind]
    #: Per container, in order: its asks by vendor name; empty: it asks for no card.
    asks: list[dict[str, Ask]]
    node_policy: str
    #: The words of the GPU policy, trimmed, without empty ones.
    gpu_words: list[str]
    weights: Weights

    def wants(self, vendor: RefVendor) -> bool:
        return any(vendor.name in asks for asks in self.asks)


def read_request(
    pod: objects.Pod, vendors: Sequence[RefVendor], node_policy: str, gpu_policy: str
) -> Request | None:
    """Read the request; None when no container asks for a card."""
    kinds: list[Kind] = []
    asks: list[dict[str, Ask]] = []
    for kind, container in pod.containers():
        by_vendor: dict[str, Ask] = {}
        for vendor in vendors:
            ask = read_ask(container, vendor)
            if ask is not None:
                by_vendor[vendor.name] = ask
        kinds.append(kind)
        asks.append(by_vendor)
    if not any(asks):
        return None
    if sum(1 for by_vendor in asks if by_vendor) > 100:
        raise errors.WireError("pod", pod.name, "has more than 100 containers with cards")
    lists: list[str] = []
    for vendor in vendors:
        if any(vendor.name in by_vendor for by_vendor in asks):
            check_wanted_cards(pod, vendor)
            lists.append(vendor.allocated)
    if len(set(lists)) < len(lists):
        raise errors.WireError("pod", pod.name, "asks for cards whose plugins read one list")
    return Request(
        pod=pod,
        kinds=kinds,
        asks=asks,
        node_policy=read_node_policy(pod, node_policy),
        gpu_words=read_gpu_policy(pod, gpu_policy),
        weights=read_weights(pod),
    )


def read_amount(
    container: objects.Container, vendor: RefVendor, resource: str, high: int = INT32_MAX
) -> int | None:
    """Read a value from limits, else from requests; None: absent."""
    if not resource:
        return None
    amount = container.amount(resource)
    if not vendor.reads_requests:
        amount = ((container.resources and container.resources.limits) or {}).get(resource)
    if amount is None:
        return None
    what = f"container {container.name}, {resource}"
    return quantity.exact_integer(amount, what=what, low=0, high=high)


def read_ask(container: objects.Container, vendor: RefVendor) -> Ask | None:
    if vendor.read_ask is not None:
        return vendor.read_ask(container)
    return read_plain_ask(container, vendor)


def read_plain_ask(container: objects.Container, vendor: RefVendor) -> Ask | None:
    count = read_amount(container, vendor, vendor.count) or 0
    if count == 0:
        return None
    factor = max(vendor.memory_factor, 1)
    memory = (read_amount(container, vendor, vendor.memory, INT32_MAX // factor) or 0) * factor
    percentage = read_amount(container, vendor, vendor.percentage, 100) or 0
    cores = read_amount(container, vendor, vendor.cores)
    if cores is None:
        cores = vendor.default_cores
    cores = min(cores, 100)
    if memory > 0:
        percentage = 0
    elif percentage == 0:
        memory = vendor.default_memory
        if memory == 0:
            percentage = 100
    return Ask(count=count, memory=memory, percentage=percentage, cores=cores)


def read_count(container: objects.Container, vendor: RefVendor) -> int:
    """Read only how many cards a container asks for, for the ids that pods hold."""
    if vendor.read_ask is not None:
        ask = vendor.read_ask(container)
        return ask.count if ask is not None else 0
    return read_amount(container, vendor, vendor.count) or 0


def read_node_policy(pod: objects.Pod, default: str) -> str:
    value = pod.annotation(keys.NODE_POLICY).strip()
    if not value:
        return default
    if value not in ("binpack", "spread"):
        raise errors.WireError(keys.NODE_POLICY, value, "is not binpack or spread")
    return value


def read_gpu_policy(pod: objects.Pod, default: str) -> list[str]:
    words = tokens_of(pod, keys.GPU_POLICY)
    if not words:
        words = list(text_values.comma_list(default))
    for word in words:
        if word not in GPU_POLICIES:
            raise errors.WireError(keys.GPU_POLICY, word, "is no GPU policy")
    return words


def read_weights(pod: objects.Pod) -> Weights:
    key = keys.SCORING_WEIGHTS
    value = pod.annotations.get(key)
    if value is None:
        return Weights()
    found: dict[str, int] = {}
    for part in value.split(","):
        name, equals, number = (piece.strip() for piece in part.partition("="))
        if not equals or name not in ("slot", "core", "memory") or name in found:
            raise errors.WireError(key, value, "is not slot=<n>,core=<n>,memory=<n>")
        if not (number.isascii() and number.isdigit()) or int(number) > INT32_MAX:
            raise errors.WireError(key, value, f"has no whole number for {name}")
        found[name] = int(number)
    if len(found) != 3 or not any(found.values()):
        raise errors.WireError(key, value, "misses a weight, or all weights are 0")
    return Weights(**found)


def check_wanted_cards(pod: objects.Pod, vendor: RefVendor) -> None:
    """Refuse a use list that is not blank but names nothing."""
    for key in (vendor.use_type, vendor.use_uuid):
        if pod.annotation(key).strip() and not tokens_of(pod, key):
            raise errors.WireError(key, pod.annotation(key), "names nothing")


def tokens_of(pod: objects.Pod, key: str) -> list[str]:
    """Read a comma list of the pod: its words, trimmed, without empty ones."""
    return list(text_values.comma_list(pod.annotation(key)))


def numa_bound(pod: objects.Pod, vendor: RefVendor) -> bool:
    try:
        return text_values.parse_bool(pod.annotation(vendor.numa_bind), what=vendor.numa_bind)
    except errors.WireError:
        return False
