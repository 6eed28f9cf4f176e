"""One id from a request to all its effects.

A server sets the id for each request, and a component for work that it starts on its own. Logs
print it, and writes to the API server carry it as `Audit-ID`, so that lines of our log and of the
cluster's audit log can be joined. A task started meanwhile inherits it.
"""

from __future__ import annotations

import contextvars
import secrets

_current: contextvars.ContextVar[str] = contextvars.ContextVar("hami_correlation", default="")


def begin(given: str = "") -> str:
    """Set the id of what follows in this task: the caller's own, or a new one."""
    chosen = given or secrets.token_hex(8)
    _current.set(chosen)
    return chosen


def current() -> str:
    """Return the id; empty outside of any request."""
    return _current.get()
