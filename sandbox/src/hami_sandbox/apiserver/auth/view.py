"""What the doors read of the store: objects by group, resource and name."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from hami_sandbox.apiserver.refusals import Object


class View(Protocol):
    """The newest state. What it gives out is shared: nobody changes it."""

    def find(self, group: str, resource: str, namespace: str, name: str) -> Object | None:
        """Return one object; the namespace is empty where the kind has none."""

    def all(self, group: str, resource: str, namespace: str = "") -> Iterable[Object]:
        """Return the objects of a kind, in one namespace or in all, in the order of their keys."""
