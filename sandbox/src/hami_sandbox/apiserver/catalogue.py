"""Everything that is served: the kinds built in, and those that custom resources define."""

from __future__ import annotations

from collections.abc import Sequence

from hami_sandbox.apiserver import kinds
from hami_sandbox.apiserver.kind import Kind


class Catalogue:
    def __init__(self) -> None:
        self._custom: dict[tuple[str, str, str], Kind] = {}
        self._all: tuple[Kind, ...] = kinds.KINDS

    @property
    def all(self) -> Sequence[Kind]:
        return self._all

    def find(self, group: str, version: str, resource: str) -> Kind | None:
        """Return the kind behind a path."""
        built_in = kinds.find(group, version, resource)
        return built_in or self._custom.get((group, version, resource))

    def define(self, custom: Sequence[Kind]) -> None:
        """Serve these custom kinds, and no others, from now on."""
        self._custom = {(kind.group, kind.version, kind.resource): kind for kind in custom}
        self._all = (*kinds.KINDS, *custom)
