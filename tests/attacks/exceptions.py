"""Attacks that gain something, and nothing else does.

The first list is what a library in the container cannot hold; the monitor reports it from the host.
The second is open work or a decision; docs/threats.md names it as a known gap.
"""

from __future__ import annotations

SEEN_FROM_THE_HOST = frozenset({"static-binary"})
GAPS: frozenset[str] = frozenset()
