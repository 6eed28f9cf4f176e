"""The sandbox's error: object, broken rule, remedy."""

from __future__ import annotations


class SandboxError(ValueError):
    """A stand-in node cannot be made, or does not have what was asked of it."""

    def __init__(self, what: str, rule: str, remedy: str) -> None:
        self.what = what
        self.rule = rule
        self.remedy = remedy
        super().__init__(f"{what}: {rule}; {remedy}")
