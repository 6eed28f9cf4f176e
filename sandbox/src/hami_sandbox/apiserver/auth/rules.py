"""Rules of roles and webhooks: lists in which a star stands for everything."""

from __future__ import annotations

from collections.abc import Sequence


def has(listed: Sequence[str] | None, value: str) -> bool:
    return listed is not None and ("*" in listed or value in listed)
