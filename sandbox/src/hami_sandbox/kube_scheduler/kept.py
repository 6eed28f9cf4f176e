"""What the scheduler keeps of nodes and of pods alike: whose it is, by its metadata."""

from __future__ import annotations

import dataclasses

from hami.kube import listwatch
from hami.wire import objects
from hami_sandbox.label_selectors import Labels


@dataclasses.dataclass(slots=True, frozen=True, eq=False, kw_only=True)
class Kept:
    metadata: objects.Metadata

    @property
    def uid(self) -> str:
        return self.metadata.uid or ""

    @property
    def name(self) -> str:
        return self.metadata.name or ""

    @property
    def version(self) -> int:
        return listwatch.version_number(self.metadata.resource_version)

    @property
    def labels(self) -> Labels:
        return self.metadata.labels or {}
