"""The one error of installing, beside those of the API server.

It is for the person who installs: which object, what it is, the rule it breaks, what to do.
"""

from __future__ import annotations


class InstallationError(Exception):
    """Something in the cluster is in the way, and only a person can decide."""

    def __init__(self, what: str, rule: str, remedy: str) -> None:
        super().__init__(f"{what}: {rule}; {remedy}")
        self.what = what
        self.rule = rule
        self.remedy = remedy


class NotThereYet(InstallationError):  # noqa: N818 - the name says what happened
    """An object that another makes is missing; it may come."""
