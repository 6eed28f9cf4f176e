"""Pods that must be near others, or far from them; judged by parts of the cluster.

A part is a label of nodes and its value: a zone, a rack, a single node. For one pod the parts are
gathered once, from the pods that are placed; each node is then only looked up.

A namespaceSelector is held against the one label that every namespace has, its name.
"""

from __future__ import annotations

from collections.abc import Iterable

from hami_sandbox.kube_scheduler import pods
from hami_sandbox.kube_scheduler.nodes import Node, Row
from hami_sandbox.kube_scheduler.pods import Pod, PodTerm

NOT_NEAR = "node(s) didn't match pod affinity rules"
NOT_FAR = "node(s) didn't match pod anti-affinity rules"
UNWANTED = "node(s) didn't satisfy existing pods anti-affinity rules"

_NAMESPACE_NAME = "kubernetes.io/metadata.name"

Part = tuple[str, str | None]


class Neighbours:
    """What those who are placed mean for one pod."""

    def __init__(self, pod: Pod, rows: Iterable[Row], repelling: Iterable[tuple[Pod, Row]]) -> None:
        """Gather; `repelling` are the placed pods that keep others away."""
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
        # The first of a group that wants to stay together has nobody to go to.
        self._first = not found and all(_means(term, pod, pod) for term in pod.near)

    def _look_at(self, pod: Pod, other: Pod, node: Node | None) -> bool:
        """Note where somebody is whom the pod looks for; return whether all its terms mean them."""
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
    """Return whether a term of one pod means another."""
    namespaces, selector = term.namespaces, term.namespace_selector
    if namespaces or selector is not None:
        named = other.namespace in (namespaces or ())
        if not named and not pods.selects(selector, {_NAMESPACE_NAME: other.namespace}):
            return False
    elif other.namespace != owner.namespace:
        return False
    return pods.selects(term.label_selector, other.labels)
