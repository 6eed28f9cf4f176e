"""Names and addresses that a server answers to, and whether a certificate's names cover them."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Collection

from hami.wire import comma_list, errors

Address = ipaddress.IPv4Address | ipaddress.IPv6Address

_LABEL = r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?"
#: The last part is no number: what looks like an address and is none, is none.
_NAME = re.compile(rf"(?:\*\.)?(?:{_LABEL}\.)*(?!\d+$){_LABEL}", re.ASCII)
_LONGEST = 253


def parse(text: str, *, what: str) -> tuple[str, ...]:
    """Read a comma list of host names and addresses, each once and in its usual form."""
    hosts = tuple(dict.fromkeys(_host(word, what) for word in comma_list.tokens(text)))
    if not hosts:
        raise errors.WireError(
            what, text, "names no host", "write for example hami-webhook.kube-system.svc"
        )
    return hosts


def address(host: str) -> Address | None:
    """Return the IP address that a host is, or None for a name."""
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None


def covered(host: str, names: Collection[str], addresses: Collection[object]) -> bool:
    """Tell whether a certificate with these names and addresses is good for a host."""
    if (wanted := address(host)) is not None:
        return wanted in addresses
    # A star stands for exactly one part, the first.
    alike = {host, f"*.{host.partition('.')[2]}"}
    return any(name.lower() in alike for name in names)


def _host(word: str, what: str) -> str:
    if (found := address(word)) is not None:
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
