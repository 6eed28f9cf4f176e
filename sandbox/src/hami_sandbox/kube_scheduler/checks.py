"""kube-scheduler's checks of a node, in its order and words; pod affinity.

The first check that fails ends the check, as in kube-scheduler; only resources are reported all at
once. Pod affinity comes last: it depends on domains, a label of nodes and its value (a zone, a
rack, a single node). For one pod they are gathered once, from the placed pods; then each node is
one lookup. A namespaceSelector sees only the label that every namespace has, its name.
"""

from __future__ import annotations

from collections.abc import Iterable

from hami_sandbox.kube_scheduler import pods, selection
from hami_sandbox.kube_scheduler.nodes import Node, Row
from hami_sandbox.kube_scheduler.pods import Pod, PodTerm

NOT_NEAR = "node(s) didn't match pod affinity rules"
NOT_FAR = "node(s) didn't match pod anti-affinity rules"
UNWANTED = "node(s) didn't satisfy existing pods anti-affinity rules"

_NAMESPACE_NAME = "kubernetes.io/metadata.name"

Part = tuple[str, str | None]


UNSCHEDULABLE = "node(s) were unschedulable"
UNTOLERATED = "node(s) had untolerated taint(s)"
NOT_SELECTED = "node(s) didn't match Pod's node affinity/selector"
NO_PORTS = "node(s) didn't have free ports for the requested pod ports"
TOO_MANY_PODS = "Too many pods"

Reasons = tuple[str, ...]


def reasons(pod: Pod, row: Row) -> Reasons:
    """Return why a pod does not fit on a node, without pod affinity; empty if it fits."""
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
    """Check the node itself, without the pods on it."""
    if node.unschedulable and not selection.tolerates(pod.tolerations, selection.UNSCHEDULABLE):
        return UNSCHEDULABLE
    if node.taints and not selection.tolerates_all(pod.tolerations, node.taints):
        return UNTOLERATED
    if pod.node_selector or pod.node_affinity is not None:
        labels = node.labels
        if any(labels.get(key) != value for key, value in pod.node_selector.items()):
            return NOT_SELECTED
        affinity = pod.node_affinity
        if affinity is not None and not selection.selects_node(affinity, node.name, labels):
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


class Neighbours:
    """Pod affinity of one pod against all placed pods."""

    def __init__(self, pod: Pod, rows: Iterable[Row], repelling: Iterable[tuple[Pod, Row]]) -> None:
        """Gather domains; `repelling` are the placed pods with anti-affinity."""
        self._near: list[tuple[str, set[str | None]]] = [(t.topology_key, set()) for t in pod.near]
        self._far: set[Part] = set()
        self._unwanted = {
            (term.topology_key, row.node.labels[term.topology_key])
            for other, row in repelling
            if row.node is not None
            for term in other.far
            if term.topology_key in row.node.labels and _means(term, other, pod)
        }
        found = False
        if pod.near or pod.far:
            for row in rows:
                for other in row.pods.values():
                    found |= self._look_at(pod, other, row.node)
        # The first pod of a group that wants to stay together has no pod to be near.
        self._first = not found and all(_means(term, pod, pod) for term in pod.near)

    def _look_at(self, pod: Pod, other: Pod, node: Node | None) -> bool:
        """Record the domains of a pod that terms select; return whether all terms select it."""
        if node is None or other.uid == pod.uid:
            return False
        meant = [_means(term, pod, other) for term in pod.near]
        if all(meant):
            for key, values in self._near:
                if key in node.labels:
                    values.add(node.labels[key])
        self._far.update(
            (term.topology_key, node.labels[term.topology_key])
            for term in pod.far
            if term.topology_key in node.labels and _means(term, pod, other)
        )
        return bool(meant) and all(meant)

    def why_not(self, node: Node) -> str:
        """Return why the pod cannot be on a node; empty if it can."""
        labels = node.labels
        for key, values in self._near:
            if key not in labels or not (self._first or labels[key] in values):
                return NOT_NEAR
        if self._far and any(labels.get(key) == value for key, value in self._far if key in labels):
            return NOT_FAR
        if any(labels.get(key) == value for key, value in self._unwanted if key in labels):
            return UNWANTED
        return ""


def _means(term: PodTerm, owner: Pod, other: Pod) -> bool:
    """Return whether a term of one pod selects another."""
    namespaces, selector = term.namespaces, term.namespace_selector
    if namespaces or selector is not None:
        named = other.namespace in (namespaces or ())
        if not named and not selection.selects(selector, {_NAMESPACE_NAME: other.namespace}):
            return False
    elif other.namespace != owner.namespace:
        return False
    return selection.selects(term.label_selector, other.labels)
