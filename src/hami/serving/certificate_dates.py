"""When a certificate expires, read from its own bytes.

Python's ssl module tells the dates only of a peer that was verified, never of the certificate that
we serve, and a library that could would weigh more than this file. A certificate is DER: nested
(tag, length, content); the way to `notAfter` is short.
"""

from __future__ import annotations

import datetime as dt
import ssl

_SEQUENCE, _VERSION, _UTC_TIME, _GENERALIZED_TIME = 0x30, 0xA0, 0x17, 0x18
_END = "-----END CERTIFICATE-----"
_LONG_FORM = 0x80


def expiry(pem: str) -> dt.datetime:
    """Return when the first certificate of a PEM file ends; ValueError if it cannot be read."""
    first, end, _ = pem.partition(_END)
    start = first.find("-----BEGIN CERTIFICATE-----")
    if not end or start < 0:
        raise ValueError("no certificate in PEM form")
    certificate = ssl.PEM_cert_to_DER_cert(first[start:] + end)
    (to_be_signed, *_) = _parts(_only(certificate, _SEQUENCE))
    fields = _parts(_content(to_be_signed, _SEQUENCE))
    # version (absent in version 1), serial number, algorithm, issuer, validity.
    validity = fields[4 if fields[0][0] == _VERSION else 3]
    _, (tag, until) = _parts(_content(validity, _SEQUENCE))
    if tag not in (_UTC_TIME, _GENERALIZED_TIME):
        raise ValueError("its end is no time")
    text = until.decode("ascii")
    # Two digits of a year count from 1950 (RFC 5280), which strptime sees otherwise.
    if tag == _UTC_TIME:
        text = ("19" if text >= "50" else "20") + text
    return dt.datetime.strptime(text, "%Y%m%d%H%M%SZ").replace(tzinfo=dt.UTC)


def _parts(data: bytes) -> list[tuple[int, bytes]]:
    """Split DER into its (tag, content)."""
    found = []
    at = 0
    while at < len(data):
        if at + 2 > len(data):
            raise ValueError("cut off")
        tag, length = data[at], data[at + 1]
        at += 2
        if length >= _LONG_FORM:
            size = length - _LONG_FORM
            length = int.from_bytes(data[at : at + size], "big")
            at += size
        if at + length > len(data):
            raise ValueError("cut off")
        found.append((tag, data[at : at + length]))
        at += length
    return found


def _content(part: tuple[int, bytes], tag: int) -> bytes:
    if part[0] != tag:
        raise ValueError(f"tag {part[0]} where {tag} must stand")
    return part[1]


def _only(data: bytes, tag: int) -> bytes:
    (part,) = _parts(data)
    return _content(part, tag)
