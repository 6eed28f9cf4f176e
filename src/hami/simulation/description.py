"""The description of simulated devices: a YAML file of nodes and their cards.

    nodes:
    - names: [gpu-*]           # patterns of node names; absent: every node
      devices:
      - model: A100-40GB       # of the catalogue
        cards: 4
      - vendor: NVIDIA         # or any card at all
        model: NVIDIA A10
        memory: 23028          # MiB
        cards: 2

The first entry whose patterns match counts for a node. Whatever is wrong is a ConfigError with
file, field, value, rule and remedy: a fleet that differs from its description teaches nothing.
"""

from __future__ import annotations

import fnmatch
import os
from collections.abc import Mapping, Sequence

import msgspec

from hami.simulation import catalogue
from hami.simulation.catalogue import Catalogue, Model
from hami.vendors import config_file
from hami.vendors.config_file import ConfigError, Section
from hami.vendors.family import MAX_CARDS
from hami.vendors.table import Vendor
from hami.wire import shares

_START = "write at least\nnodes:\n- devices:\n  - {model: A100-40GB, cards: 2}"
#: Devices of one resource on one node: kubelet gets all of them in one message.
MAX_DEVICES = 20_000
_MAX_CORES = 1024
_MAX_TEXT = 256


class CardGroup(msgspec.Struct, frozen=True, kw_only=True):
    """Cards of one model on one node."""

    vendor: str
    #: The product's name in the register.
    type: str
    cards: int
    #: MiB of each.
    memory: int
    cores: int
    #: How many containers may share one.
    shares: int
    #: NUMA nodes over which the cards are spread, in order.
    numa_nodes: int = 1
    #: Positions of cards that are broken.
    unhealthy: tuple[int, ...] = ()


class NodeGroup(msgspec.Struct, frozen=True, kw_only=True):
    """Nodes that have the same cards."""

    names: tuple[str, ...]
    groups: tuple[CardGroup, ...]

    def matches(self, node: str) -> bool:
        return any(fnmatch.fnmatchcase(node, pattern) for pattern in self.names)


class Description(msgspec.Struct, frozen=True):
    nodes: tuple[NodeGroup, ...]

    def of_node(self, node: str) -> tuple[CardGroup, ...]:
        """Return the cards of a node; empty: no entry names it."""
        return next((each.groups for each in self.nodes if each.matches(node)), ())


def load(
    path: str | os.PathLike[str],
    vendors: Sequence[Vendor],
    *,
    among: Catalogue | None = None,
) -> Description:
    """Read and check the file at `path`."""
    text = config_file.read(path, remedy="check --devices-file and the file's permissions")
    return parse(text, vendors, source=os.fspath(path), among=among)


def parse(
    text: str, vendors: Sequence[Vendor], *, source: str, among: Catalogue | None = None
) -> Description:
    """Check the text of a description; `source` names it in errors."""
    root = Section(config_file.load(text, source=source), source=source, path="")
    nodes = root.sections("nodes")
    root.refuse_unknown()
    if not nodes:
        raise root.error("nodes", "must be a list of at least one entry", _START)
    reader = _Reader({each.name: each for each in vendors}, among or catalogue.built_in())
    return Description(tuple(map(reader.node, nodes)))


class _Reader:
    def __init__(self, vendors: Mapping[str, Vendor], known: Catalogue) -> None:
        self._vendors = vendors
        self._known = known

    def node(self, section: Section) -> NodeGroup:
        devices = section.sections("devices")
        names = section.texts("names") if section.has("names") else ("*",)
        section.refuse_unknown()
        if not devices:
            raise section.error(
                "devices", "must be a list of at least one entry", "write - {model: T4, cards: 1}"
            )
        groups = tuple(map(self._cards, devices))
        for vendor in {each.vendor for each in groups}:
            self._check_vendor(section, vendor, [e for e in groups if e.vendor == vendor])
        return NodeGroup(names=names, groups=groups)

    def _cards(self, section: Section) -> CardGroup:
        name = section.text("model", "")
        model = self._known.models.get(name)
        vendor = section.text("vendor", model.vendor if model else "")
        if model is not None and vendor != model.vendor:
            raise section.error(
                "vendor",
                f"is not the vendor of model {name}, which is {model.vendor}",
                f"write {model.vendor}, or another model",
            )
        if vendor not in self._vendors:
            raise self._no_vendor(section, name, vendor)
        if not name or len(name) > _MAX_TEXT or not shares.SEPARATORS.isdisjoint(name):
            raise section.error(
                "model",
                f"must be a name of 1 to {_MAX_TEXT} characters without , : ;",
                f"write one of {', '.join(self._models(vendor))}, or any name together with memory",
            )
        group = self._group(section, vendor, model)
        section.refuse_unknown()
        return group

    def _group(self, section: Section, vendor: str, model: Model | None) -> CardGroup:
        cards = section.whole("cards", 1, low=1, high=MAX_CARDS)
        if model is None and not section.has("memory"):
            raise section.error(
                "memory",
                f"must be given, because {section.text('model', '')} is no model that we know",
                f"write the MiB of one card, or one of {', '.join(self._models(vendor))}",
            )
        unhealthy = section.wholes("unhealthy", high=cards - 1)
        usual = model or Model(name="", vendor=vendor, type=section.text("model", ""), memory=0)
        return CardGroup(
            vendor=vendor,
            type=usual.type,
            cards=cards,
            memory=section.whole("memory", usual.memory, low=1),
            cores=section.whole("cores", usual.cores, low=1, high=_MAX_CORES),
            shares=section.whole("shares", usual.shares, low=1, high=MAX_DEVICES),
            numa_nodes=section.whole("numaNodes", 1, low=1, high=cards),
            unhealthy=unhealthy,
        )

    def _check_vendor(self, section: Section, vendor: str, groups: list[CardGroup]) -> None:
        cards = sum(each.cards for each in groups)
        devices = sum(each.cards * each.shares for each in groups)
        if cards > MAX_CARDS or devices > MAX_DEVICES:
            raise section.error(
                "devices",
                f"have {cards} cards of {vendor} with {devices} shares; a node has at most "
                f"{MAX_CARDS} cards and {MAX_DEVICES} shares of one vendor",
                "write fewer cards, or spread them over several nodes",
            )
        kinds = {(each.type, each.memory, each.shares, each.cores) for each in groups}
        if len(kinds) > 1 and self._vendors[vendor].register_codec in ("capacity", "family"):
            raise section.error(
                "devices",
                f"have {len(kinds)} kinds of {vendor}, whose plugin cannot list them apart",
                f"write cards of {vendor} that are alike, or put them on different nodes",
            )
        capacity = self._vendors[vendor].capacity
        if capacity is not None and groups[0].cores != capacity.cores:
            raise section.error(
                "devices",
                f"have cards of {vendor} with {groups[0].cores} cores; these always have "
                f"{capacity.cores}",
                "remove the key cores",
            )

    def _no_vendor(self, section: Section, model: str, vendor: str) -> ConfigError:
        if vendor:
            near = config_file.nearest(vendor, self._vendors)
            return section.error(
                "vendor",
                "is no vendor, or device-config.yaml has it off",
                f"write one of {', '.join(self._vendors)}{near}",
            )
        near = config_file.nearest(model, self._known.models)
        return section.error(
            "model",
            "is no model that we know, and the entry names no vendor",
            f"write one of {', '.join(self._known.models)}, or add vendor and memory{near}",
        )

    def _models(self, vendor: str) -> list[str]:
        return [each.name for each in self._known.model if each.vendor == vendor]
