"""What the device manager refuses, in kubelet's own words: users and tests search for them."""

from __future__ import annotations


class DevicesError(Exception):
    """An allocation cannot be made; the text is kubelet's."""


class AdmissionError(Exception):
    """A pod is not admitted: it fails for good, with this reason and message in its status."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(f"{reason}: {message}")
        self.reason = reason
        self.message = message


class StartError(DevicesError):
    """A container cannot be made now (`CreateContainerConfigError`); kubelet tries again."""
