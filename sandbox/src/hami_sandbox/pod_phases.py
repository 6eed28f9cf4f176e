"""Phases of a pod: those that it never leaves."""

from __future__ import annotations

ENDED = frozenset({"Succeeded", "Failed"})
