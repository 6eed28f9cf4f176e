"""Models of cards to simulate, and the device plugins that differ from the usual.

Both are data, in `catalogue.toml`: a vendor that the table of `hami.vendors` has and this file has
not gets the usual plugin, and any card can be described without a model. The file is part of the
product, so a broken one is our mistake and stops the program at once.
"""

from __future__ import annotations

import functools
import importlib.resources
import tomllib
from collections.abc import Mapping
from typing import Literal

import msgspec

from hami.wire import shares

_FILE = "catalogue.toml"


class CatalogueError(ValueError):
    """The catalogue is broken."""


class Offer(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One extended resource that a plugin offers to kubelet."""

    #: A field of the vendor's resources, as `count`; or a resource's whole name.
    resource: str
    #: Devices for each card: its shares, percent of compute, units of memory, GiB, or one.
    per_card: Literal["shares", "cores", "memory", "gib", "one"] = "shares"


class Plugin(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How one vendor's device plugin speaks to kubelet and to the scheduler."""

    #: Name of the vendor in the table.
    vendor: str
    offers: tuple[Offer, ...] = (Offer("count"),)
    #: Begin of a card's id; empty: the vendor's name.
    id_prefix: str = ""
    answers_handshake: bool = True
    #: How a pod is found, and what ends its start: HAMi's list and lock; flags on the pod; nothing.
    ending: Literal["lock", "flags", "nothing"] = "lock"
    #: With `flags`: annotations of the pod whose value becomes "true" once it has its devices.
    flags: tuple[str, ...] = ()
    #: With `flags`: the annotation of the pod whose JSON has `allocated` for each container.
    container_flags: str = ""
    #: Format of a register that is neither JSON nor colon text.
    register: Literal["", "drs"] = ""


class Model(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A card that users can name instead of describing it."""

    name: str
    vendor: str
    #: The product's name, as the vendor's plugin registers it.
    type: str
    #: MiB.
    memory: int
    #: Percent of compute; AMD's are compute units.
    cores: int = shares.WHOLE_CARD
    #: How many containers may share the card.
    shares: int = 10


class Catalogue(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    plugin: tuple[Plugin, ...] = ()
    model: tuple[Model, ...] = ()

    def plugin_of(self, vendor: str) -> Plugin:
        """Return the plugin of a vendor: the usual one, where the catalogue has no other."""
        return next((each for each in self.plugin if each.vendor == vendor), Plugin(vendor))

    @property
    def models(self) -> Mapping[str, Model]:
        return {each.name: each for each in self.model}


@functools.cache
def built_in() -> Catalogue:
    text = importlib.resources.files("hami.simulation").joinpath(_FILE).read_text("utf-8")
    return parse(text)


def parse(text: str, *, source: str = _FILE) -> Catalogue:
    """Read a catalogue; `source` names it in errors."""
    try:
        found = msgspec.convert(tomllib.loads(text), Catalogue)
    except (tomllib.TOMLDecodeError, msgspec.ValidationError) as error:
        raise CatalogueError(f"{source}: {error}") from error
    for names in ([each.vendor for each in found.plugin], [each.name for each in found.model]):
        doubled = [name for name in names if names.count(name) > 1]
        if doubled:
            raise CatalogueError(f"{source}: {doubled[0]!r} is written twice; keep one of them")
    return found
