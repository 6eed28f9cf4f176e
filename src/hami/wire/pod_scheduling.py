"""The scheduling fields of a pod that only explanations read.

They are apart from `hami.wire.objects`, so that no watch decodes them. kube-scheduler keeps its
last message in the condition PodScheduled and repeats it as an event; the condition stays.
"""

from __future__ import annotations

from hami.wire import codec


class Condition(codec.Object, frozen=True):
    type: str | None = None
    status: str | None = None
    message: str | None = None
    last_transition_time: str | None = None


class _Status(codec.Object, frozen=True):
    conditions: list[Condition | None] | None = None
    nominated_node_name: str | None = None


class _Gate(codec.Object, frozen=True):
    name: str | None = None


class _Spec(codec.Object, frozen=True):
    scheduling_gates: list[_Gate | None] | None = None


class PodScheduling(codec.Object, frozen=True):
    """What a pod says of its way to a node."""

    spec: _Spec | None = None
    status: _Status | None = None

    def gates(self) -> tuple[str, ...]:
        """Return its scheduling gates: no scheduler tries it while it has any."""
        listed = (self.spec and self.spec.scheduling_gates) or ()
        return tuple((gate and gate.name) or "" for gate in listed)

    def nominated(self) -> str:
        """Return the node where kube-scheduler makes room for it, or empty."""
        return (self.status and self.status.nominated_node_name) or ""

    def waiting(self) -> Condition:
        """Return the condition that kube-scheduler wrote when it found no node."""
        for condition in (self.status and self.status.conditions) or ():
            if condition and condition.type == "PodScheduled" and condition.status == "False":
                return condition
        return Condition()

    def to_data(self) -> dict[str, object]:
        """Return plain data for JSON; what is empty is left out."""
        found = {
            "message": self.waiting().message,
            "gates": list(self.gates()),
            "nominatedNodeName": self.nominated(),
        }
        return {key: value for key, value in found.items() if value}


def decode(data: bytes) -> PodScheduling:
    """Read the fields from a pod as the API server sends it; may raise WireError."""
    return codec.decode(data, PodScheduling, what="pod")
