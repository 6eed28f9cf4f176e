"""Free ports of loopback for programs that must be told theirs beforehand."""

from __future__ import annotations

import contextlib
import socket


def free(count: int) -> list[int]:
    """Return ports that nobody has now; all are held together, so they differ."""
    with contextlib.ExitStack() as stack:
        ports = []
        for _ in range(count):
            held = stack.enter_context(socket.socket())
            held.bind(("127.0.0.1", 0))
            ports.append(int(held.getsockname()[1]))
        return ports
