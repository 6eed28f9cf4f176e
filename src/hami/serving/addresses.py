"""Addresses to listen on, and the peers of connections.

Addresses are written as in Go, because users know that from HAMi: `:9395`, `127.0.0.1:8080`,
`[::1]:443`. An empty host is every address of the machine, IPv4 and IPv6 with one socket if the
kernel can.

Scheduling and profiling are for the sibling kube-scheduler, which calls over loopback, and for
clients with a certificate of a configured CA. A peer's address is taken from the connection: a
header could be forged.
"""

from __future__ import annotations

import asyncio
import functools
import ipaddress
import os
import re
import socket
from collections.abc import Callable

from hami.serving import certificates, lifetime

_LAST_PORT = 65535
_FORMS = "write HOST:PORT, as in :9395, 127.0.0.1:8080 or [::1]:443"
#: Connections that the kernel queues while the loop is busy.
BACKLOG = 1024
_PREFERRED = (socket.AF_INET, socket.AF_INET6)


def parse(text: str) -> tuple[str, int]:
    """Split an address into host and port; the host is without brackets, empty for all."""
    host, colon, port = text.strip().rpartition(":")
    if not colon:
        raise lifetime.ServingError(f"bind address {text!r} has no port; {_FORMS}")
    if not (re.fullmatch(r"[0-9]{1,5}", port) and int(port) <= _LAST_PORT):
        raise lifetime.ServingError(
            f"bind address {text!r}: port {port!r} is no number from 0 to {_LAST_PORT}; {_FORMS}"
        )
    if host.startswith("[") != host.endswith("]"):
        raise lifetime.ServingError(f"bind address {text!r} has only one bracket; {_FORMS}")
    if host.startswith("["):
        host = host[1:-1]
        try:
            ipaddress.IPv6Address(host)
        except ValueError as error:
            raise lifetime.ServingError(
                f"bind address {text!r}: {host!r} is no IPv6 address; {_FORMS}"
            ) from error
    elif ":" in host:
        raise lifetime.ServingError(
            f"bind address {text!r}: an IPv6 address must be in brackets; {_FORMS}"
        )
    return host, int(port)


def listen(host: str, port: int) -> socket.socket:
    """Make a listening socket."""
    try:
        if not host:
            return _listen_everywhere(port)
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        # A name may have both: IPv4 is preferred, as in Go, because clients try 127.0.0.1.
        family = min((entry[0] for entry in found), key=_PREFERRED.index)
        return socket.create_server((host, port), family=family, backlog=BACKLOG)
    except OSError as error:
        shown = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        # Errors of a name lookup have a number below 0 and a good text. Python's text of a socket
        # error would repeat the address.
        number = error.errno or 0
        reason = os.strerror(number) if number > 0 else error.strerror or str(error)
        raise lifetime.ServingError(
            f"cannot listen on {shown}: {reason}; "
            "choose an address of this machine and a port that is free"
        ) from error


def _listen_everywhere(port: int) -> socket.socket:
    if socket.has_dualstack_ipv6():
        return socket.create_server(
            ("", port), family=socket.AF_INET6, backlog=BACKLOG, dualstack_ipv6=True
        )
    return socket.create_server(("", port), backlog=BACKLOG)


#: Tells whether a peer's address is this machine (or, in a pod, this pod).
IsLocal = Callable[[str], bool]


def address(transport: asyncio.BaseTransport | None) -> str:
    """Return the peer's address without port; empty if it is disconnected or has none."""
    name = None if transport is None else transport.get_extra_info("peername")
    return str(name[0]) if isinstance(name, tuple) else ""


@functools.lru_cache(maxsize=1024)
def is_loopback(peer: str) -> bool:
    """Tell whether an address is 127.0.0.0/8 or ::1, also as IPv4-mapped IPv6."""
    try:
        parsed = ipaddress.ip_address(peer)
    except ValueError:
        return False
    mapped = getattr(parsed, "ipv4_mapped", None)
    return bool((mapped or parsed).is_loopback)


def has_certificate(
    transport: asyncio.BaseTransport | None, tls: certificates.LiveCertificate | None
) -> bool:
    """Tell whether the peer presented a certificate of a CA that is trusted now."""
    if transport is None or tls is None:
        return False
    return tls.vouches_for(transport.get_extra_info("ssl_object"))
