"""The cards of a node, as its register annotation carries them.

Two formats are in use: a JSON array (NVIDIA and most vendors) and the older colon format (Hygon,
Iluvatar). The JSON is written with the field order and omissions that HAMi's readers know. Any error rejects the whole
annotation: half a node is worse than none, because the missing half may be in use.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from hami.wire import codec, errors, go_values

_INT16_MAX = 2**15 - 1
_OLD_FIELDS, _NEW_FIELDS = 7, 9


class MigPlacement(codec.Object):
    start: int = 0
    size: int = 0


class MigProfile(codec.Object, rename={"memory": "memoryMB", "slice_count": "sliceCount"}):
    name: str = ""
    memory: int = 0
    core: int = 0
    slice_count: int = 0
    placements: tuple[MigPlacement, ...] = ()


class Device(codec.Object, rename={"mig_profiles": "migProfiles"}):
    """One card. The order of the fields is the order on the wire; zero values are omitted."""

    id: str = ""
    index: int = 0
    #: How many containers may share the card.
    count: int = 0
    #: MiB, after the node's memory scaling.
    devmem: int = 0
    #: Percent, after the node's core scaling.
    devcore: int = 0
    type: str = ""
    numa: int = 0
    mode: str = ""
    mig_profiles: tuple[MigProfile, ...] = ()
    health: bool = False
    devicevendor: str = ""
    custominfo: dict[str, Any] = {}
