"""HTTP connections to one API server, pooled, and noticed when they are dead.

A connection whose other end vanished without a word (a node lost power, a firewall forgot it) would
look alive for hours. The kernel's keepalive probes find that out within half a minute, on watches
that may rightly be silent for longer, too.
"""

from __future__ import annotations

import socket

import aiohttp
from aiohttp.abc import AbstractCookieJar

#: kube-apiserver closes what was idle for 90 s; a request must not meet that.
_IDLE = 30.0
_MOST = 100
_PROBE_AFTER, _PROBE_EVERY, _PROBES = 15, 5, 3


def session(user_agent: str) -> aiohttp.ClientSession:
    jar: AbstractCookieJar = aiohttp.DummyCookieJar()
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(
            limit=_MOST, keepalive_timeout=_IDLE, socket_factory=_probing_socket
        ),
        headers={
            "Accept": "application/json",
            # Compressing costs both ends more than it saves within a cluster.
            "Accept-Encoding": "identity",
            "User-Agent": user_agent,
        },
        cookie_jar=jar,
    )


def _probing_socket(address: aiohttp.AddrInfoType) -> socket.socket:
    family, kind, protocol, _, _ = address
    made = socket.socket(family, kind, protocol)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    made.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, _PROBE_AFTER)
    made.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, _PROBE_EVERY)
    made.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, _PROBES)
    # The same for what was sent and is not acknowledged, which silences the probes.
    limit = 1000 * (_PROBE_AFTER + _PROBES * _PROBE_EVERY)
    made.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, limit)
    return made
