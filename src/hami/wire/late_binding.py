"""The mark by which a node's agent says: no lock needed, I bind pods to cards late.

The agent writes it together with the register annotation and takes it away when it stops. The
mark names the very register value it was written with, by a hash. So if another agent, HAMi's for
example, has registered the node since, the marks do not fit and the scheduler takes the lock.
"""

from __future__ import annotations

import hashlib

from hami.wire import errors

_WORD = "late"
_DIGITS = 16


def mark(register_value: str) -> str:
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
        return mark_value == mark(register_value)
    except errors.WireError:
        return False
