"""What the server knows about a kind: its names, where it lives, what may be asked of it."""

from __future__ import annotations

import msgspec

COLLECTION = (
    "create",
    "delete",
    "deletecollection",
    "get",
    "list",
    "patch",
    "update",
    "watch",
)
READ_WRITE = ("get", "patch", "update")


class Subresource(msgspec.Struct, frozen=True, kw_only=True):
    """A part of an object, or an act upon it, with a path of its own."""

    name: str
    kind: str  # of what is sent and answered there
    group: str = ""
    version: str = "v1"
    verbs: tuple[str, ...] = READ_WRITE

    @property
    def api_version(self) -> str:
        return f"{self.group}/{self.version}" if self.group else self.version


class Kind(msgspec.Struct, frozen=True, kw_only=True):
    """A kind of objects under one group and version."""

    group: str
    version: str
    resource: str  # plural, as in paths
    kind: str
    singular: str
    short_names: tuple[str, ...] = ()
    namespaced: bool = True
    categories: tuple[str, ...] = ()
    subresources: tuple[Subresource, ...] = ()
    verbs: tuple[str, ...] = COLLECTION
    # Fields that selectors know besides metadata.name and metadata.namespace.
    fields: tuple[str, ...] = ()
    # Whether a replacement may leave out the version that it replaces.
    unconditional: bool = True
    # Whether metadata.generation counts the changes of everything but metadata and status.
    generation: bool = False
    # The kind (group, resource) whose objects this one shows; empty: its own.
    shows: tuple[str, str] = ("", "")
    # Whether its fields are known; those of a custom resource are not.
    custom: bool = False

    @property
    def api_version(self) -> str:
        """Return `v1`, or `group/v1`."""
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def list_kind(self) -> str:
        return f"{self.kind}List"

    @property
    def qualified(self) -> str:
        """Return the resource as messages name it: `leases.coordination.k8s.io`."""
        return f"{self.resource}.{self.group}" if self.group else self.resource

    @property
    def stored(self) -> tuple[str, str]:
        """Return under which group and resource the objects are stored."""
        return self.shows if self.shows != ("", "") else (self.group, self.resource)

    @property
    def has_status(self) -> bool:
        """Whether the status is written only through its own path."""
        return any(sub.name == "status" for sub in self.subresources)

    def subresource(self, name: str) -> Subresource | None:
        return next((sub for sub in self.subresources if sub.name == name), None)
