"""Looking at objects without decoding them.

Of a hundred thousand pods few ask for a GPU. What decides that is found by searching the bytes for
a few words (`mentions`); identity and version are two fields (`meta`). Only what is wanted is then
decoded into its real type.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from hami.wire import codec, errors

_VERSION_DIGITS = 20


class _Meta(codec.Object, frozen=True):
    uid: str | None = None
    resource_version: str | None = None


class _Identified(codec.Object, frozen=True):
    metadata: _Meta | None = None


class _Event(codec.Object, frozen=True):
    type: str = ""
    # Not a part of the line that was read: it would keep all of it in memory.
    object: msgspec.Raw = msgspec.Raw(b"null")


def decode_event(line: bytes) -> tuple[str, bytes]:
    """Return what happened, and the object's bytes."""
    event = codec.decode(line, _Event, what="watch event")
    return event.type, bytes(event.object)


def meta(raw: bytes) -> tuple[str, int]:
    """Return UID and resourceVersion of an object."""
    found = codec.decode(raw, _Identified, what="object").metadata
    if found is None or not found.uid:
        raise errors.WireError("object", raw, "has no metadata.uid")
    return found.uid, version(found.resource_version)


def version(text: str | None) -> int:
    """Return a resourceVersion as the number that it is.

    Kubernetes long called them opaque; since 1.35 their order is promised, and it always held.
    """
    if not text or not text.isascii() or not text.isdigit() or len(text) > _VERSION_DIGITS:
        raise errors.WireError("resourceVersion", text or "", "is not a whole number")
    return int(text)


def mentions(raw: bytes, needles: Sequence[bytes]) -> bool:
    """Return whether any of these words stands anywhere in the bytes."""
    return any(needle in raw for needle in needles)
