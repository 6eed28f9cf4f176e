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
from collections.abc import Iterable
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


class Vendor(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One vendor of cards, as the whole product sees it."""

    #: Key of requests and device lists, TYPE in pod annotations.
    name: str
    #: Its section of device-config.yaml.
    section: str
    resources: ResourceNames
    annotations: AnnotationKeys
    register_codec: Literal["json", "colon"] = "json"
    #: MiB per unit of the memory resource.
    memory_factor: int = 1
    #: MiB when a pod names neither memory nor percentage; 0 is the whole card.
    default_memory: int = 0
    #: Percent when a pod names no cores; 0 is unlimited.
    default_cores: int = 0
    #: Cards when a pod names only memory or cores; 0 switches that off.
    default_count: int = 1
    #: Whether binding a pod to a node takes HAMi's node lock.
    takes_lock: bool = True
    #: Whether ResourceQuota holds for it.
    enforces_quota: bool = True
    #: Whether node.status.allocatable bounds what a node can take.
    bounded_by_ids: bool = True
    #: Name of its family in hami.vendors.families; empty: the row says everything.
    family: str = ""


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
    """Return the annotations of pods in which vendors' device lists are."""
    return tuple(vendor.annotations.allocated for vendor in vendors if vendor.annotations.allocated)


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
    _refuse_doubles("name", [vendor.name for vendor in vendors], source)
    _refuse_doubles("resource", [n for v in vendors for n in v.resources.named()], source)
    return vendors


def _refuse_doubles(what: str, names: list[str], source: str) -> None:
    doubled = [name for name, times in collections.Counter(names).items() if times > 1]
    if doubled:
        raise TableError(
            f"{source}: {what} {doubled[0]!r} is written twice; each {what} belongs to one row only"
        )
