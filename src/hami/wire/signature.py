"""Signature of a grant: proof that our scheduler made it.

A user who may patch pods can rewrite annotations. So the Binding carries a code over pod UID, node
and device list, made with a key that only scheduler and agents have; without it the agent starts
no container. The value is `v1:<key id>:<code>`:

- the key id is the first 8 hex digits of SHA-256 of the key. It names the key that signed, and
  reveals nothing about the key itself, which is 256 random bits;
- the code is HMAC-SHA256 over `v1`, UID, node and devices, joined by newlines, as base64url
  without padding (43 characters). UID and node have no newline, so the text has one reading.

During a change of keys the previous one still verifies; only the current one signs.
"""

from __future__ import annotations

import base64
import dataclasses
import functools
import hashlib
import hmac

from hami.wire import errors

KEY_BYTES = 32

_VERSION = "v1"
_KEY_ID_DIGITS = 8


@dataclasses.dataclass(frozen=True, slots=True)
class GrantKeys:
    """The keys of a cluster. They never appear in a message or a repr."""

    current: bytes = dataclasses.field(repr=False)
    previous: bytes | None = dataclasses.field(default=None, repr=False)

    def __post_init__(self) -> None:
        for name in ("current", "previous"):
            key = getattr(self, name)
            if key is not None and len(key) != KEY_BYTES:
                raise errors.WireError(
                    f"grant key {name}",
                    len(key),
                    f"bytes long, must be {KEY_BYTES}",
                    f"make a new one: head -c {KEY_BYTES} /dev/urandom",
                )


def resize(devices: str) -> str:
    """Return the text that is signed for a resize: no grant can be replayed as one."""
    return f"resize\n{devices}"


@functools.lru_cache(maxsize=8)
def key_id(key: bytes) -> str:
    """Return the id of a key."""
    return hashlib.sha256(key).hexdigest()[:_KEY_ID_DIGITS]


def sign(keys: GrantKeys, *, uid: str, node: str, devices: str) -> str:
    """Return the value for `hami.io/grant-mac`, made with the current key."""
    return _sign(keys.current, uid=uid, node=node, devices=devices)


def verify(keys: GrantKeys, value: str, *, uid: str, node: str, devices: str) -> bool:
    """Return True if one of the keys made `value` for exactly this pod, node and device list."""
    given = value.encode(errors="replace")
    for key in (keys.current, keys.previous):
        # The id is public, so it may select the key: a scheduler verifies 100,000 at its start.
        if key is None or not value.startswith(f"{_VERSION}:{key_id(key)}:"):
            continue
        try:
            wanted = _sign(key, uid=uid, node=node, devices=devices)
        except errors.WireError:
            return False
        if hmac.compare_digest(given, wanted.encode()):
            return True
    return False


@functools.lru_cache(maxsize=8)
def _keyed(key: bytes) -> hmac.HMAC:
    """Return the HMAC of nothing: its copies need not read the key again."""
    return hmac.new(key, digestmod="sha256")


def _sign(key: bytes, *, uid: str, node: str, devices: str) -> str:
    for what, part in (("pod UID", uid), ("node name", node)):
        if not part or "\n" in part:
            raise errors.WireError(what, part, "is empty or has a line break: nothing to grant to")
    try:
        text = f"{_VERSION}\n{uid}\n{node}\n{devices}".encode()
    except UnicodeEncodeError as error:
        raise errors.WireError(
            "grant", devices, f"or its pod or node is not valid text: {error.reason}"
        ) from error
    mac = _keyed(key).copy()
    mac.update(text)
    code = base64.urlsafe_b64encode(mac.digest()).rstrip(b"=")
    return f"{_VERSION}:{key_id(key)}:{code.decode()}"
