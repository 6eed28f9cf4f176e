"""The agent's errors: each says object, rule and remedy."""

from __future__ import annotations


class AgentError(Exception):
    """A step of the agent failed; the message is for kubelet's event and for the log."""

    def __init__(self, what: str, rule: str, remedy: str = "") -> None:
        message = f"{what}: {rule}"
        super().__init__(f"{message}; {remedy}" if remedy else message)
        self.what = what
        self.rule = rule
        self.remedy = remedy


class RefusalError(AgentError):
    """A container gets no card, or its share is not resized; the pod's event shows the message."""
