"""What a controller keeps of an object: its identity, its owners, whether it is going."""

from __future__ import annotations

from hami.kube import listwatch
from hami.wire import codec


class Owner(codec.Object, frozen=True):
    api_version: str = ""
    kind: str = ""
    name: str = ""
    uid: str = ""
    controller: bool | None = None
    block_owner_deletion: bool | None = None


class _Metadata(codec.Object, frozen=True):
    name: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: str | None = None
    deletion_timestamp: str | None = None
    finalizers: tuple[str, ...] | None = None
    owner_references: tuple[Owner, ...] | None = None


class _Body(codec.Object, frozen=True):
    metadata: _Metadata


class Item:
    """An object of any kind, without its content: whoever acts reads it anew."""

    __slots__ = ("deleting", "finalizers", "name", "namespace", "owners", "uid", "version")

    def __init__(self, told: _Metadata) -> None:
        self.uid = told.uid
        self.name = told.name
        self.namespace = told.namespace
        self.deleting = told.deletion_timestamp is not None
        self.finalizers = told.finalizers or ()
        self.owners = told.owner_references or ()
        self.version = listwatch.version_number(told.resource_version)

    @property
    def key(self) -> str:
        return f"{self.namespace}/{self.name}" if self.namespace else self.name

    def controller(self) -> Owner | None:
        """Return the owner that made it and looks after it."""
        return next((owner for owner in self.owners if owner.controller), None)


def decode(body: bytes) -> Item:
    return Item(codec.decode(body, _Body, what="object").metadata)
