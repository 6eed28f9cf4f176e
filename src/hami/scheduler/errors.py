"""Why a verb is refused: the text goes to kube-scheduler, into an event and the log."""

from __future__ import annotations

from hami.wire import objects


class RefusedError(Exception):
    """A request cannot be granted; the message names the value, the rule and the remedy."""

    def __init__(self, message: str, pod: objects.Pod | None = None) -> None:
        super().__init__(message)
        #: The pod at fault, if its owner should be told.
        self.pod = pod


class BindRefusedError(RefusedError):
    """A pod is not bound, and nothing of this attempt remains."""
