"""Vendors of cards: names, units, defaults, annotation keys; the built-in table.

A vendor is a row of data, and the core knows nothing else of it. The built-in rows are in
`rows.toml`; `hami.vendors.device_config` applies the user's device-config.yaml to them. Code that
only some vendors need is a family (`hami.vendors.family`), which the row names; most vendors need
none.

The built-in rows are part of the product, so a broken one is our mistake and stops the program at
once, with the place and the rule in the message.
"""

from __future__ import annotations

import collections
import functools
import importlib.resources
import tomllib
from collections.abc import Collection, Iterable
from typing import Literal

import msgspec


class ResourceNames(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Extended resources a pod may ask for; an empty name means that the vendor has none."""

    #: How many cards.
    count: str
    #: Memory on each, in units of `Vendor.memory_factor` MiB.
    memory: str = ""
    #: Memory on each, in percent of the card.
    memory_percentage: str = ""
    #: Percent of compute on each.
    cores: str = ""
    priority: str = ""

    def named(self) -> tuple[str, ...]:
        """Return the names the vendor has, the count's first."""
        return tuple(name for name in msgspec.structs.astuple(self) if name)


class AnnotationKeys(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The vendor's annotations of nodes and pods; an empty key means that the vendor has none."""

    #: Node: its cards.
    register: str = ""
    #: Node: the old liveness conversation.
    handshake: str = ""
    #: Node: cards closed for new pods.
    cordon: str = ""
    #: Node: cards that the agent has closed, and why.
    closed: str = ""
    #: Node: link scores between cards.
    pair_scores: str = ""
    #: Node: the agent binds late, no lock needed.
    binding: str = ""
    #: Node: why the agent does not.
    lock_reason: str = ""
    #: Node: names of the resources that the agent keeps in the node's status.
    shares: str = ""
    #: Node: names the pod between bind and Allocate; vendors may share one.
    lock: str = ""
    #: Node: the UID of that pod.
    lock_owner: str = ""
    #: Pod: shares that the node has yet to hand out.
    to_allocate: str = ""
    #: Pod: shares that the pod was granted, for good.
    allocated: str = ""
    #: Pod: the cards that its user accepts.
    use_type: str = ""
    nouse_type: str = ""
    use_uuid: str = ""
    nouse_uuid: str = ""
    mode: str = ""
    numa_bind: str = ""
    #: Pod: what else the scheduler writes for the vendor's plugin, and the plugin may change.
    extra: tuple[str, ...] = ()


class CapacityCards(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Cards that a node's capacity tells of, where no annotation lists them."""

    #: Field of `Vendor.resources`, or a full name: what of the node's capacity is cut into cards.
    resource: str
    #: Between the name of the node and the index of the card: `<node>-<id>-<index>`.
    id: str
    #: Product type.
    type: str
    #: So much of the resource is one card; a rest is one more.
    per_card: int = 1
    #: Containers that may share a card.
    count: int = 1
    #: MiB; 0: the node's capacity of the memory resource, divided among the cards.
    memory: int = 0
    cores: int = 100


CardCheck = Literal["idle", "shares", "memory", "cores", "exclusive", "exhausted"]
"""A check of how full a card is; `hami.placement.checks` has them.

`idle`: no container is on it. `shares`: one more may be. `memory`, `cores`: there is enough of it.
`exclusive`: all compute of a card is for one container alone. `exhausted`: a container without a
limit of compute needs some that is left.
"""


class NodeLock(msgspec.Struct, frozen=True):
    """A lock on nodes that a vendor's device plugin reads and removes."""

    #: Annotation keys of the lock, and of the UID of the pod that holds it.
    key: str
    owner_key: str
    #: Whether its value names the pod.
    names_pod: bool
    #: Seconds after which one that names no pod is stale; 0: --node-lock-timeout.
    timeout: int


class Vendor(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One vendor of cards, as the whole product sees it."""

    #: Key of requests and device lists, TYPE in pod annotations.
    name: str
    #: Its section of device-config.yaml.
    section: str
    resources: ResourceNames
    annotations: AnnotationKeys
    #: TYPE in device lists; empty: its name.
    word: str = ""
    #: Whether TYPE is the product type of each card instead.
    lists_product: bool = False
    #: What lists the cards of a node; its family reads a format of its own.
    register_codec: Literal["json", "colon", "capacity", "family"] = "json"
    #: With the codec `capacity`.
    capacity: CapacityCards | None = None
    #: Percent with which every card counts; 0: as it is registered.
    card_cores: int = 0
    #: MiB per unit of the memory resource.
    memory_factor: int = 1
    #: MiB when a pod names neither memory nor percentage; 0 is the whole card.
    default_memory: int = 0
    #: Percent when a pod names no cores; 0 is unlimited.
    default_cores: int = 0
    #: Cards when a pod names only memory or cores; 0 switches that off.
    default_count: int = 1
    #: Whether a request without a limit counts.
    reads_requests: bool = True
    #: Whether a container takes memory and compute of a card; if not, it takes only one share.
    sized: bool = True
    #: How a card is checked, in the order in which reasons are reported.
    checks: tuple[CardCheck, ...] = ("shares", "memory", "cores", "exclusive", "exhausted")
    #: Whether the lock's value names its pod; if not, it is a time alone.
    lock_names_pod: bool = True
    #: Seconds after which a lock that names no pod is stale; 0: --node-lock-timeout.
    lock_timeout: int = 0
    #: Whether ResourceQuota holds when cards are chosen, too; at admission it always does.
    enforces_quota: bool = True
    #: Whether the vendor has cards only on nodes whose kubelet offers its count resource.
    needs_offer: bool = False
    #: Whether node.status.allocatable bounds what a node can take.
    bounded_by_ids: bool = True
    #: HAMi's flag that switches the vendor on; empty: it is always on.
    switch: str = ""
    #: Field of `resources` -> its key in device-config.yaml, where it is not the usual one.
    config_keys: dict[str, str] = {}
    #: Name of its family in hami.vendors.families; empty: the row says everything.
    family: str = ""

    @property
    def lock(self) -> NodeLock | None:
        """The lock that binding a pod to a node takes; None: it takes none."""
        keys = self.annotations
        if not keys.lock:
            return None
        return NodeLock(keys.lock, keys.lock_owner, self.lock_names_pod, self.lock_timeout)

    @property
    def type_word(self) -> str:
        """TYPE in device lists, where it is not the card's."""
        return self.word or self.name


_FILE = "rows.toml"


class TableError(ValueError):
    """The table of built-in vendors is broken."""


@functools.cache
def built_in() -> tuple[Vendor, ...]:
    """Return the built-in vendors in the order in which they are checked."""
    text = importlib.resources.files("hami.vendors").joinpath(_FILE).read_text("utf-8")
    return parse(text, source=_FILE)


def nvidia(vendors: Iterable[Vendor]) -> Vendor:
    """Return NVIDIA among these; every table has it once."""
    (found,) = (vendor for vendor in vendors if vendor.section == "nvidia")
    return found


def device_lists(vendors: Iterable[Vendor]) -> tuple[str, ...]:
    """Return the annotations of pods in which vendors' device lists are, each once."""
    found = (vendor.annotations.allocated for vendor in vendors)
    return tuple(dict.fromkeys(key for key in found if key))


def node_lists(vendors: Iterable[Vendor]) -> frozenset[str]:
    """Return the annotations of nodes in which vendors' plugins list cards and report."""
    keys = (vendor.annotations for vendor in vendors)
    return frozenset(key for each in keys for key in (each.register, each.handshake) if key)


def lists_under_lock(vendors: Iterable[Vendor], of: Vendor) -> tuple[str, ...]:
    """Return the lists that plugins of other vendors hand out under a vendor's lock."""
    keys = (vendor.annotations for vendor in vendors if vendor.name != of.name)
    lock = of.annotations.lock
    return tuple(key.to_allocate for key in keys if lock and key.lock == lock and key.to_allocate)


def switched_on(vendors: Iterable[Vendor], switches: Collection[str]) -> tuple[Vendor, ...]:
    """Return the vendors that are always on, and those whose flag is given."""
    return tuple(vendor for vendor in vendors if not vendor.switch or vendor.switch in switches)


def parse(text: str, *, source: str) -> tuple[Vendor, ...]:
    """Read a table of rows; `source` names it in errors."""
    try:
        tables = msgspec.convert(tomllib.loads(text), dict[str, tuple[Vendor, ...]])
    except (tomllib.TOMLDecodeError, msgspec.ValidationError) as error:
        raise TableError(f"{source}: {error}") from error
    vendors = tables.pop("vendor", ())
    if tables or not vendors:
        raise TableError(f"{source}: every row is a [[vendor]], and there is at least one")
    for vendor in vendors:
        if not (vendor.name and vendor.section and vendor.resources.count):
            raise TableError(
                f"{source}: vendor {vendor.name!r} needs name, section and resources.count; "
                "write all three, none empty"
            )
        if (vendor.register_codec == "capacity") != (vendor.capacity is not None):
            raise TableError(
                f"{source}: vendor {vendor.name!r} needs both register_codec 'capacity' and "
                "[vendor.capacity], or neither; write what its cards are made of"
            )
    _refuse_doubles("name", [vendor.name for vendor in vendors], source)
    _refuse_doubles("resource", [n for v in vendors for n in v.resources.named()], source)
    return vendors


def _refuse_doubles(what: str, names: list[str], source: str) -> None:
    doubled = [name for name, times in collections.Counter(names).items() if times > 1]
    if doubled:
        raise TableError(
            f"{source}: {what} {doubled[0]!r} is written twice; each {what} belongs to one row only"
        )
