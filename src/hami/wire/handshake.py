"""The old liveness conversation between scheduler and device plugins, in one node annotation.

The scheduler writes `Requesting_<time>`; a living plugin overwrites it with anything else. Only
the word decides, no plugin's answer is parsed. The time is local without a zone, because HAMi
writes it so; both sides are expected to share the zone. There is no clock here: the caller
brings the time.
"""

from __future__ import annotations

import datetime as dt
import re

from hami.wire import codec

ANSWER_WITHIN = dt.timedelta(seconds=60)

_WORD = "Requesting"
# Go accepts a fraction after the seconds though its layout names none.
_TIME = re.compile(
    r"([0-9]{4})-([0-9]{2})-([0-9]{2}) ([0-9]{2}):([0-9]{2}):([0-9]{2})(?:[.,][0-9]+)?", re.ASCII
)


class Health(codec.Object, frozen=True):
    #: Whether the plugin counts as alive.
    healthy: bool
    #: Whether the plugin has spoken since: read its cards anew and write a new request.
    refresh: bool


def request(now: dt.datetime) -> str:
    """Write a request with the local time `now`."""
    return f"{_WORD}_{now.replace(tzinfo=None).isoformat(sep=' ', timespec='seconds')}"


def evaluate(value: str | None, *, now: dt.datetime, allocatable: int) -> Health:
    """Judge a plugin by the annotation, and by what kubelet still counts if it is late."""
    if value is None or _WORD not in value:
        return Health(healthy=True, refresh=True)
    asked = _time_of(value)
    late = asked is not None and now - asked >= ANSWER_WITHIN
    return Health(healthy=not late or allocatable > 0, refresh=False)


def _time_of(value: str) -> dt.datetime | None:
    _, _, rest = value.partition("_")
    found = _TIME.fullmatch(rest.partition("_")[0])
    if found is None:
        return None
    year, month, day, hour, minute, second = map(int, found.groups())
    try:
        return dt.datetime(year, month, day, hour, minute, second)  # noqa: DTZ001  local
    except ValueError:
        return None
