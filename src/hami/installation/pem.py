"""Certificates as text, one after the other: told apart and joined without being understood."""

from __future__ import annotations

import re
import ssl

_BLOCK = re.compile(rb"-----BEGIN CERTIFICATE-----.*?-----END CERTIFICATE-----", re.DOTALL)


def blocks(text: bytes) -> list[bytes]:
    """Return the certificates of a PEM text, each ending in a newline."""
    return [found + b"\n" for found in _BLOCK.findall(text)]


def joined(*texts: bytes) -> bytes:
    """Join PEM texts; a certificate that stands in several of them is taken once."""
    return b"".join(dict.fromkeys(block for text in texts for block in blocks(text)))


def readable(text: bytes) -> bool:
    """Tell whether TLS can be told to trust the certificates of this text."""
    try:
        certificates = b"".join(blocks(text)).decode("ascii")
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(cadata=certificates)
    except (ssl.SSLError, ValueError):
        return False
    return True
