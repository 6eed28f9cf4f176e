"""Certificates as PEM text, and the host names they must cover.

Loads no cryptography, unlike `hami.installation.certificates`.
"""

from __future__ import annotations

import ipaddress
import re
import ssl
from collections.abc import Collection

from hami.wire import errors, text_values

Address = ipaddress.IPv4Address | ipaddress.IPv6Address

_LABEL = r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?"
#: The last part is no number: a malformed address is no name either.
_NAME = re.compile(rf"(?:\*\.)?(?:{_LABEL}\.)*(?!\d+$){_LABEL}", re.ASCII)
_LONGEST = 253


def parse(text: str, *, what: str) -> tuple[str, ...]:
    """Read a comma list of host names and addresses, without repetitions, in canonical form."""
    hosts = tuple(dict.fromkeys(_host(word, what) for word in text_values.comma_list(text)))
    if not hosts:
        raise errors.WireError(
            what, text, "names no host", "write for example hami-webhook.kube-system.svc"
        )
    return hosts


def host_address(host: str) -> Address | None:
    """Return the IP address that a host is, or None for a name."""
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None


def covered(host: str, names: Collection[str], addresses: Collection[object]) -> bool:
    """Tell whether a certificate with these names and addresses covers a host."""
    if (wanted := host_address(host)) is not None:
        return wanted in addresses
    # A star replaces exactly one part, the first.
    alike = {host, f"*.{host.partition('.')[2]}"}
    return any(name.lower() in alike for name in names)


def _host(word: str, what: str) -> str:
    if (found := host_address(word)) is not None:
        return str(found)
    name = word.lower()
    if len(name) > _LONGEST or not _NAME.fullmatch(name):
        raise errors.WireError(
            what,
            word,
            "is neither a host name nor an IP address",
            "write for example hami-webhook.kube-system.svc or 127.0.0.1",
        )
    return name


_BLOCK = re.compile(rb"-----BEGIN CERTIFICATE-----.*?-----END CERTIFICATE-----", re.DOTALL)


def blocks(text: bytes) -> list[bytes]:
    """Return the certificates of a PEM text, each ending in a newline."""
    return [found + b"\n" for found in _BLOCK.findall(text)]


def joined(*texts: bytes) -> bytes:
    """Join PEM texts; a certificate that is in several of them is taken once."""
    return b"".join(dict.fromkeys(block for text in texts for block in blocks(text)))


def readable(text: bytes) -> bool:
    """Tell whether TLS can load the certificates of this text as trusted."""
    try:
        certificates = b"".join(blocks(text)).decode("ascii")
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(cadata=certificates)
    except (ssl.SSLError, ValueError):
        return False
    return True
