"""Why a node cannot take a pod: kube-scheduler's own checks, in its order and words.

The first check that fails ends the matter, as there; only resources are told all at once. What
comes last, the pods nearby, is `hami_sandbox.kube_scheduler.pod_affinity`'s.
"""

from __future__ import annotations

from hami_sandbox.kube_scheduler import pods
from hami_sandbox.kube_scheduler.nodes import Node, Row
from hami_sandbox.kube_scheduler.pods import Pod

UNSCHEDULABLE = "node(s) were unschedulable"
UNTOLERATED = "node(s) had untolerated taint(s)"
NOT_SELECTED = "node(s) didn't match Pod's node affinity/selector"
NO_PORTS = "node(s) didn't have free ports for the requested pod ports"
TOO_MANY_PODS = "Too many pods"

Reasons = tuple[str, ...]


def reasons(pod: Pod, row: Row) -> Reasons:
    """Return why a pod does not fit on a node, whoever its neighbours are; nothing if it does."""
    node = row.node
    if node is None:
        return ("node not found",)
    found = _of_node(pod, node)
    if found:
        return (found,)
    if pod.ports and any(row.ports.get(port) for port in pod.ports):
        return (NO_PORTS,)
    return _short(pod, node, row)


def _of_node(pod: Pod, node: Node) -> str:
    """Judge the node as such, whoever is on it."""
    if node.unschedulable and not pods.tolerates(pod.tolerations, pods.UNSCHEDULABLE):
        return UNSCHEDULABLE
    if node.taints and not pods.tolerates_all(pod.tolerations, node.taints):
        return UNTOLERATED
    if pod.node_selector or pod.node_affinity is not None:
        labels = node.labels
        if any(labels.get(key) != value for key, value in pod.node_selector.items()):
            return NOT_SELECTED
        affinity = pod.node_affinity
        if affinity is not None and not pods.selects_node(affinity, node.name, labels):
            return NOT_SELECTED
    return ""


def _short(pod: Pod, node: Node, row: Row) -> Reasons:
    allocatable, used = node.allocatable, row.used
    missing: list[str] = []
    if len(row.pods) >= allocatable.get(pods.PODS, 0):
        missing.append(TOO_MANY_PODS)
    missing += [
        f"Insufficient {name}"
        for name, amount in pod.needs.items()
        if amount > allocatable.get(name, 0) - used.get(name, 0)
    ]
    return tuple(missing)
