"""One version of an object: its content, which nobody changes, and its bytes, made once."""

from __future__ import annotations

import msgspec

from hami_sandbox.apiserver.refusals import Object

_encode = msgspec.json.Encoder().encode
_NAMES = ("kind", "apiVersion")


class Stored:
    """An object at a version. The content is shared by all readers: whoever changes it copies it.

    An object inside a list does not name its kind, and one by itself does. The bytes are those
    inside a list; the names are put in front of them.
    """

    __slots__ = ("_bare", "_head", "object", "revision", "shown")

    def __init__(self, content: Object, revision: int) -> None:
        self.object = content
        self.revision = revision
        # The same object as another kind shows it, by that kind's group.
        self.shown: dict[str, Stored] | None = None
        self._bare: bytes | None = None
        self._head: bytes | None = None

    @property
    def bare(self) -> bytes:
        """Return the bytes without kind and version."""
        if self._bare is None:
            self._bare = _encode({k: v for k, v in self.object.items() if k not in _NAMES})
        return self._bare

    @property
    def whole(self) -> bytes:
        """Return the bytes with kind and version."""
        return join(self.head, self.bare)

    @property
    def head(self) -> bytes:
        if self._head is None:
            self._head = head(self.object["kind"], self.object["apiVersion"])
        return self._head

    @property
    def key(self) -> str:
        metadata = self.object["metadata"]
        return key_of(metadata.get("namespace") or "", metadata["name"])

    def at(self, revision: int) -> Stored:
        """Return the same content under a later version, as the last state of what is gone."""
        metadata = {**self.object["metadata"], "resourceVersion": str(revision)}
        return Stored({**self.object, "metadata": metadata}, revision)


def key_of(namespace: str, name: str) -> str:
    """Return the key in a table; its order is that of lists, and namespaces are together."""
    return f"{namespace}/{name}"


def head(kind: str, api_version: str) -> bytes:
    return _encode({"kind": kind, "apiVersion": api_version})


def join(names: bytes, bare: bytes) -> bytes:
    """Put the names in front of an object's other fields; it always has metadata."""
    return names[:-1] + b"," + bare[1:]
