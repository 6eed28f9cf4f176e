"""HAMi's node lock: which pod is between bind and Allocate on a node.

The value is `<RFC3339 time>,<namespace>,<pod>`; plugins find the pod by it. An older form is
the bare time, which nobody owns. Taking, ageing and releasing the lock is the extender's and the
agent's work; here is only the text. Times are written as Go writes them, in whole seconds.
"""

from __future__ import annotations

import datetime as dt
import re

from hami.wire import codec, errors

_WHAT = "node lock"
_PARTS = 3
_REMEDY = "remove the node's annotation hami.io/mutex.lock if no pod is starting there"
_RFC3339 = re.compile(
    r"([0-9]{4})-([0-9]{2})-([0-9]{2})T([0-9]{2}):([0-9]{2}):([0-9]{2})(?:\.([0-9]+))?"
    r"(?:Z|([+-])([0-9]{2}):([0-5][0-9]))",
    re.ASCII,
)


class Lock(codec.Object, frozen=True):
    """A lock; without namespace and name it has the older form."""

    #: Always with a zone.
    time: dt.datetime
    namespace: str = ""
    name: str = ""

    def held_by(self, namespace: str, name: str) -> bool:
        """Return whether that pod owns it. Nobody owns one of the older form."""
        return bool(self.name) and (self.namespace, self.name) == (namespace, name)


def decode(value: str) -> Lock:
    """Read a lock of either form."""
    parts = value.split(",")
    if len(parts) == 1:
        return Lock(_parse_time(value))
    if len(parts) != _PARTS:
        raise errors.WireError(
            _WHAT, value, "is neither a time nor <time>,<namespace>,<pod>", _REMEDY
        )
    time, namespace, name = parts
    if not (namespace and name):
        raise errors.WireError(_WHAT, value, "names no pod after its time", _REMEDY)
    return Lock(_parse_time(time), namespace, name)


def encode(lock: Lock) -> str:
    """Write a lock as Go would."""
    offset = lock.time.utcoffset()
    if offset is None:
        raise errors.WireError(_WHAT, lock.time, "has no time zone")
    text = lock.time.replace(microsecond=0, tzinfo=None).isoformat()
    text += _zone(offset)
    owner = (lock.namespace, lock.name)
    if not any(owner):
        return text
    if not all(owner) or any("," in part for part in owner):
        raise errors.WireError(_WHAT, ",".join(owner), "is not a namespace and a pod name")
    return f"{text},{lock.namespace},{lock.name}"


def _zone(offset: dt.timedelta) -> str:
    minutes = abs(offset) // dt.timedelta(minutes=1)
    if not minutes:
        return "Z"
    return f"{'-' if offset < dt.timedelta() else '+'}{minutes // 60:02}:{minutes % 60:02}"


def _parse_time(text: str) -> dt.datetime:
    found = _RFC3339.fullmatch(text)
    if found is None:
        raise errors.WireError(_WHAT, text, "is not an RFC 3339 time", _REMEDY)
    *numbers, fraction, sign, hours, minutes = found.groups()
    year, month, day, hour, minute, second = map(int, numbers)
    offset = dt.timedelta(hours=int(hours or 0), minutes=int(minutes or 0))
    try:
        return dt.datetime(
            year,
            month,
            day,
            hour,
            minute,
            second,
            int((fraction or "")[:6].ljust(6, "0")),
            tzinfo=dt.timezone(-offset if sign == "-" else offset),
        )
    except ValueError as error:
        raise errors.WireError(_WHAT, text, f"is not a real time: {error}", _REMEDY) from error
