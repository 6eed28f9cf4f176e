"""Attacks that gain something; no other may.

The first list is what a library in a container cannot hold. The second is what is open, or cannot
be closed by hami; docs/threats.md says which.
"""

from __future__ import annotations

#: Reported by the monitor within seconds.
SEEN_FROM_THE_HOST = frozenset(
    {
        "static-binary",
        "static-with-entry",
        "static-on-other-card",
        "no-request",
        "direct-ioctl",
        "unshare",
        "chroot",
        "preload-symlink",
        "driver-preloaded",
        "driver-renamed",
        "state-zeroed",
    }
)
#: Neither held nor reported.
GAPS = frozenset(
    {
        "stolen-key-v1",
        "resize-replayed-v1",
        "pods-read",
        "false-events",
        "quota-read",
        "metrics-read",
    }
)
