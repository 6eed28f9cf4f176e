"""What admission is told once, at start: by flags, and by device-config.yaml."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from hami.admission.mig_fallback import Plan
from hami.admission.mig_offer import MigOffer
from hami.cluster.quota import Headroom
from hami.placement.request import Defaults
from hami.vendors.device_config import NvidiaSettings
from hami.vendors.table import Vendor

ANY = "*"
"""In a list of namespaces: all of them."""


class Rules(msgspec.Struct, frozen=True, kw_only=True):
    vendors: tuple[Vendor, ...]
    nvidia: NvidiaSettings = NvidiaSettings()
    #: What pods with cards get as their schedulerName; empty: MIG fallback is all we do.
    scheduler_name: str = "hami-scheduler"
    #: Whether pods that name default-scheduler are taken over.
    force_overwrite_default_scheduler: bool = True
    #: Policies of pods that name none.
    defaults: Defaults = Defaults()
    #: The folder above `vgpu` that the node agent mounts into containers.
    hook_path: str = "/usr/local"
    #: Who may ask for the highest priority, which holds up everybody else on the card.
    high_priority_namespaces: frozenset[str] = frozenset()
    high_priority_classes: frozenset[str] = frozenset()
    #: None: pods that ask for MIG profiles are left alone.
    fallback: Plan | None = None


class Facts(msgspec.Struct, frozen=True):
    """What a decision rests on beside the pod."""

    rules: Rules
    #: What nodes offer.
    inventory: MigOffer
    #: What a namespace may still take of a vendor's cards.
    headroom: Callable[[str, Vendor], Headroom]


def unlimited(_: str, __: Vendor) -> Headroom:
    """Give what there is where nobody counts."""
    return Headroom()
