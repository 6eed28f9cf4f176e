"""Marks on a node: HAMi's lock, late binding, closed cards, the old handshake.

HAMi's lock names the pod that is between bind and Allocate: `<RFC3339 time>,<namespace>,<pod>`. An
older form is the bare time, which has no owner. Times are written as Go writes them, in whole
seconds. Scheduler and agent take, judge and release the lock; this module has only the text.

A name is not an identity: a pod can be deleted and created again. So our scheduler writes the
owner's UID beside the lock, in an annotation of its own, `<UID>,<value of the lock>`. With the
value in it, what is left of an earlier lock does not count for a later one, of HAMi for example.

The late binding mark is the agent's: this node needs no lock, because pods are bound to cards late.
The agent writes it with the register annotation and removes it when it stops. The mark has a hash
of that annotation, so if another agent (HAMi's for example) has registered the node since, mark and
annotation do not fit and the scheduler takes the lock.

Cards are closed for new pods by two marks. The administrator's (HAMi's `hami.io/device-cordon`) is
a list of card ids, or `all`. The agent's is a JSON object: by card id, why it is closed, in words
for people: who still uses a cordoned card, that it is released, that processes of a deleted pod
are on it.

The handshake is the old liveness check of device plugins. The scheduler writes `Requesting_<time>`,
and a living plugin overwrites it with any other text. The time is local, without a zone, as HAMi
writes it.
"""

from __future__ import annotations

import datetime as dt
import hashlib
import re
from collections.abc import Mapping

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
        """Return True if that pod owns it. A lock of the older form has no owner."""
        return bool(self.name) and (self.namespace, self.name) == (namespace, name)


def decode_lock(value: str) -> Lock:
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


def encode_lock(lock: Lock) -> str:
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


def encode_owner(uid: str, lock: str) -> str:
    """Write the UID of the pod that takes a lock with this value."""
    return f"{uid},{lock}"


def owner_uid(value: str, lock: str) -> str:
    """Return the UID of the pod that holds a lock; empty: it is not known."""
    uid, _, of = value.partition(",")
    return uid if lock and of == lock else ""


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


_WORD = "late"
_DIGITS = 16


def late_binding_mark(register_value: str) -> str:
    """Return the mark that goes with a register annotation: a hash over its exact bytes."""
    try:
        data = register_value.encode()
    except UnicodeEncodeError as error:
        raise errors.WireError(
            "node register annotation", register_value, f"is not valid text: {error.reason}"
        ) from error
    return f"{_WORD},{hashlib.sha256(data).hexdigest()[:_DIGITS]}"


def is_late(mark_value: str | None, register_value: str | None) -> bool:
    """Return whether the mark was written with this register annotation."""
    if mark_value is None or register_value is None:
        return False
    try:
        return mark_value == late_binding_mark(register_value)
    except errors.WireError:
        return False


CORDON_ALL = "all"
"""In the administrator's list of cordoned cards: every card of the node."""


def encode_closed(states: Mapping[str, str]) -> str | None:
    """Write the agent's mark of closed cards, by card id; None: none is closed."""
    return codec.encode(dict(sorted(states.items()))).decode() if states else None


def decode_closed(value: str) -> dict[str, str]:
    """Read the agent's mark of closed cards; an empty value closes none."""
    return codec.decode(value, dict[str, str], what="closed cards of a node") if value else {}


_HANDSHAKE_WORD = "Requesting"


def handshake_request(now: dt.datetime) -> str:
    """Write a request with the local time `now`."""
    return f"{_HANDSHAKE_WORD}_{now.replace(tzinfo=None).isoformat(sep=' ', timespec='seconds')}"


def handshake_answer(now: dt.datetime) -> str:
    """Write a device plugin's answer with the local time `now`."""
    return f"Reported_{now.replace(tzinfo=None).isoformat(sep=' ', timespec='seconds')}"


def handshake_answered(value: str | None) -> bool:
    """Whether the plugin has overwritten our last request, or was never sent one."""
    return value is None or _HANDSHAKE_WORD not in value
