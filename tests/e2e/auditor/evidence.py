"""Input of the auditor: plain data, gathered once, that no check changes.

Checks are functions of it and of nothing else, so a fault can be planted in a value as well as in
a cluster. Whatever should have been read and could not be stands in `NodeFiles.unreadable`: missing
evidence is a finding, never silence.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from tests.e2e.auditor import layouts
from tests.e2e.auditor.layouts import Layout

Json = Mapping[str, Any]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """An entry of kubelet's device checkpoint, with what matters of the plugin's answer."""

    pod_uid: str
    container: str
    resource: str
    device_ids: frozenset[str]
    cdi_devices: tuple[str, ...] = ()
    mounts: tuple[str, ...] = ()
    """Paths on the node."""
    annotations: Mapping[str, str] = dataclasses.field(default_factory=dict)
    env: Mapping[str, str] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Listed:
    """What kubelet's PodResources says that a container holds of one resource."""

    namespace: str
    pod: str
    container: str
    resource: str
    device_ids: frozenset[str]


@dataclasses.dataclass(frozen=True, slots=True)
class TokenThing:
    """A file or folder on a node that exists for one token; `content` is None where none is."""

    layout: Layout
    token: str
    path: str
    content: bytes | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class LedgerFile:
    layout: Layout
    path: str
    content: bytes


@dataclasses.dataclass(frozen=True, slots=True)
class Unreadable:
    path: str
    why: str


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class NodeFiles:
    """What was read on one node."""

    checkpoint: tuple[Held, ...] = ()
    pod_resources: tuple[Listed, ...] | None = None
    """None: not asked for, so nothing is compared."""
    folders: tuple[TokenThing, ...] = ()
    """With the policy file in the folder as content."""
    specs: tuple[TokenThing, ...] = ()
    states: tuple[TokenThing, ...] = ()
    ledger: tuple[LedgerFile, ...] = ()
    peaks: str = ""
    """The fake driver's record; peaks.py says what it holds."""
    peaks_path: str = ""
    unreadable: tuple[Unreadable, ...] = ()


@dataclasses.dataclass(frozen=True, slots=True)
class ResourceNames:
    """What users write to ask for NVIDIA cards, in case device-config.yaml names it otherwise."""

    count: str = "nvidia.com/gpu"
    memory: str = "nvidia.com/gpumem"
    percentage: str = "nvidia.com/gpumem-percentage"
    cores: str = "nvidia.com/gpucores"


NVIDIA = ResourceNames()


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    nodes: tuple[Json, ...] = ()
    pods: tuple[Json, ...] = ()
    files: Mapping[str, NodeFiles] = dataclasses.field(default_factory=dict)
    """By node name; a node whose folders were not read is judged by the API alone."""
    timeline: str = ""
    """Everything that was seen of pods and nodes, as JSON lines; timeline.py says which."""
    layouts: tuple[Layout, ...] = layouts.ALL
    resources: ResourceNames = NVIDIA
    grant_keys: tuple[bytes, ...] = dataclasses.field(default=(), repr=False)
    """With keys every live grant must carry a code made with one of them."""
    quiet: bool = False
    """The harness says that no pod is being placed: then any node lock is left over."""
