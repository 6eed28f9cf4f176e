"""Why a verb is refused: the text goes to kube-scheduler, into an event and the log."""

from __future__ import annotations


class RefusedError(Exception):
    """A request cannot be granted; the message names the value, the rule and the remedy."""


class BindRefusedError(RefusedError):
    """A pod is not bound, and nothing of this attempt remains."""
