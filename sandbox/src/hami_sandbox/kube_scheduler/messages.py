"""What users read of a pod that was or was not placed, in kube-scheduler's words."""

from __future__ import annotations

from collections.abc import Mapping

NO_NODES = "no nodes available to schedule pods"
NO_PREEMPTION = "preemption: this sandbox does not preempt pods of lower priority."


def unfit(nodes: int, reasons: Mapping[str, int], *, may_preempt: bool = False) -> str:
    """Say why no node will do: each reason with the number of nodes that have it."""
    text = f"0/{nodes} nodes are available:"
    counted = sorted(f"{count} {reason}" for reason, count in reasons.items())
    if counted:
        text += f" {', '.join(counted)}."
    # kube-scheduler would look for pods to evict, and tell of it in this place.
    return f"{text} {NO_PREEMPTION}" if may_preempt else text


def assigned(key: str, node: str) -> str:
    return f"Successfully assigned {key} to {node}"


def binding_refused(why: str) -> str:
    """Say why the API server did not take our own binding; an extender's words are told as such."""
    return f'running Bind plugin "DefaultBinder": {why}'
