"""Reasons to refuse a verb; the text goes to kube-scheduler, an event and the log."""

from __future__ import annotations

from hami.wire import objects


class RefusedError(Exception):
    """A request cannot be granted; the message names the object, the rule and the remedy."""

    def __init__(self, message: str, pod: objects.Pod | None = None) -> None:
        super().__init__(message)
        #: The pod at fault: it gets an event with the message. None: no event.
        self.pod = pod


class BindRefusedError(RefusedError):
    """A pod is not bound."""
