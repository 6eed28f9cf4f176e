"""Times as objects of the API have them: in UTC, in whole seconds."""

from __future__ import annotations

import datetime as dt


def now() -> dt.datetime:
    return dt.datetime.now(dt.UTC)


def stamp(moment: dt.datetime) -> str:
    """Write a time as the API does."""
    return moment.astimezone(dt.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def stamp_at(seconds: float) -> str:
    """Write a time that a clock tells in seconds since 1970."""
    return stamp(dt.datetime.fromtimestamp(seconds, dt.UTC))


def read(text: str) -> dt.datetime:
    """Read a time of the API."""
    return dt.datetime.fromisoformat(text)
