"""Who is at the other end of a connection.

The scheduling verbs and profiling are for the sibling kube-scheduler, which calls over loopback,
and for clients with a certificate of a configured CA. The address is the connection's own: a header
can be written by anybody.
"""

from __future__ import annotations

import asyncio
import functools
import ipaddress
from collections.abc import Callable

from hami.serving import certificates

#: Tells of a peer's address whether it is this machine (or, in a pod, this pod).
IsLocal = Callable[[str], bool]


def address(transport: asyncio.BaseTransport | None) -> str:
    """Return the peer's address without port; empty when it is gone or has none."""
    name = None if transport is None else transport.get_extra_info("peername")
    return str(name[0]) if isinstance(name, tuple) else ""


@functools.lru_cache(maxsize=1024)
def is_loopback(peer: str) -> bool:
    """Tell whether an address is 127.0.0.0/8 or ::1, also in IPv6 clothes."""
    try:
        parsed = ipaddress.ip_address(peer)
    except ValueError:
        return False
    mapped = getattr(parsed, "ipv4_mapped", None)
    return bool((mapped or parsed).is_loopback)


def has_certificate(
    transport: asyncio.BaseTransport | None, tls: certificates.LiveCertificate | None
) -> bool:
    """Tell whether the peer showed a certificate of a CA that is trusted now."""
    if transport is None or tls is None:
        return False
    return tls.vouches_for(transport.get_extra_info("ssl_object"))
