"""Signatures of form v3: Ed25519 for agents, and an HMAC for schedulers.

The value is `v3:<key id>:<signature>:<HMAC>`. Only schedulers hold the signing key, 32 random bytes
from which the Ed25519 key and the HMAC key are derived. Agents hold the Ed25519 public key alone:
whatever is on a node, it cannot sign. The key id is the first 8 hex digits of SHA-256 of the public
key.

A scheduler that starts verifies 100,000 grants, and a signature takes 14 to 19 times as long as an
HMAC (`benchmarks.grants`). The HMAC covers signature and text, so a valid one proves that a
scheduler made both. If it is not valid, the signature decides.

This module loads cryptography: only scheduler, agent and the jobs of an installation import it.
"""

from __future__ import annotations

import base64
import binascii
import dataclasses
import functools
import hashlib
import hmac

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import (
    Ed25519PrivateKey,
    Ed25519PublicKey,
)

from hami.wire import errors, signature
from hami.wire.grant import V3

KEY_BYTES = 32

_FIELDS = 4
_ED25519 = b"hami grant v3 ed25519"
_HMAC = b"hami grant v3 hmac"


def _checked(key: bytes, what: str, remedy: str) -> None:
    if len(key) != KEY_BYTES:
        raise errors.WireError(what, len(key), f"bytes long, must be {KEY_BYTES}", remedy)


@dataclasses.dataclass(frozen=True)
class PublicKey:
    """What an agent verifies with; it signs nothing."""

    content: bytes

    def __post_init__(self) -> None:
        remedy = "have `hami certs create` write it from the signing key"
        _checked(self.content, "grant public key", remedy)

    @functools.cached_property
    def id(self) -> str:
        return signature.key_id(self.content)

    @functools.cached_property
    def _key(self) -> Ed25519PublicKey:
        return Ed25519PublicKey.from_public_bytes(self.content)

    def verify(self, value: str, text: bytes) -> bool:
        """Return whether the key's owner signed the text; the HMAC is not looked at."""
        fields = value.split(":")
        if len(fields) != _FIELDS or fields[:2] != [V3, self.id]:
            return False
        try:
            self._key.verify(_decoded(fields[2]), text)
        except (InvalidSignature, ValueError):
            return False
        return True


@dataclasses.dataclass(frozen=True)
class SigningKey:
    """What a scheduler signs and verifies with. It never appears in a message or a repr."""

    secret: bytes = dataclasses.field(repr=False)

    def __post_init__(self) -> None:
        _checked(
            self.secret, "grant signing key", f"make a new one: head -c {KEY_BYTES} /dev/urandom"
        )

    @functools.cached_property
    def _private(self) -> Ed25519PrivateKey:
        return Ed25519PrivateKey.from_private_bytes(_derived(self.secret, _ED25519))

    @functools.cached_property
    def _keyed(self) -> hmac.HMAC:
        """Return the HMAC of nothing: its copies need not read the key again."""
        return hmac.new(_derived(self.secret, _HMAC), digestmod="sha256")

    @functools.cached_property
    def public(self) -> PublicKey:
        return PublicKey(self._private.public_key().public_bytes_raw())

    @property
    def id(self) -> str:
        return self.public.id

    @functools.cached_property
    def _prefix(self) -> str:
        return f"{V3}:{self.id}:"

    def sign(self, text: bytes) -> str:
        head = f"{V3}:{self.id}:{_encoded(self._private.sign(text))}"
        return f"{head}:{self._mac(head, text)}"

    def verify(self, value: str, text: bytes) -> bool:
        """Return whether a scheduler with this key signed the text."""
        head, _, mac = value.rpartition(":")
        if not head.startswith(self._prefix):
            return False
        given = mac.encode(errors="replace")
        if head.isascii() and hmac.compare_digest(given, self._mac(head, text).encode()):
            return True
        return self.public.verify(value, text)

    def _mac(self, head: str, text: bytes) -> str:
        """Return the HMAC of a text and of the signature before it."""
        mac = self._keyed.copy()
        mac.update(b"%b\n%b" % (head.encode(), text))
        return _encoded(mac.digest())


def _derived(secret: bytes, purpose: bytes) -> bytes:
    return hmac.digest(secret, purpose, hashlib.sha256)


def _encoded(content: bytes) -> str:
    return base64.urlsafe_b64encode(content).decode().rstrip("=")


def _decoded(text: str) -> bytes:
    """Read base64url without padding; ValueError: not as `_encoded` writes it."""
    try:
        content = base64.urlsafe_b64decode(f"{text}==")
    except binascii.Error as error:
        raise ValueError(str(error)) from error
    if _encoded(content) != text:
        raise ValueError("not base64url")
    return content
