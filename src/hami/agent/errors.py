"""What all errors of the agent's own steps look like: what it is about, the rule, what to do."""

from __future__ import annotations


class AgentError(Exception):
    """A step of the agent cannot be done; the message is for kubelet's event and the log."""

    def __init__(self, what: str, rule: str, remedy: str = "") -> None:
        message = f"{what}: {rule}"
        super().__init__(f"{message}; {remedy}" if remedy else message)
        self.what = what
        self.rule = rule
        self.remedy = remedy


class RefusalError(AgentError):
    """A container gets no card, or a share is not changed; kubelet shows it as the pod's event."""
