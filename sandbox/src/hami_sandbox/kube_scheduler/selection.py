"""Label selectors and taints: nodes a pod may use, pods a term selects."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from hami.wire import codec
from hami_sandbox import api_objects
from hami_sandbox.api_objects import Labels


class Requirement(codec.Object, frozen=True):
    key: str = ""
    operator: str = ""
    values: tuple[str, ...] | None = None


class LabelSelector(codec.Object, frozen=True):
    match_labels: dict[str, str | None] | None = None
    match_expressions: tuple[Requirement, ...] | None = None


class NodeTerm(codec.Object, frozen=True):
    match_expressions: tuple[Requirement, ...] | None = None
    match_fields: tuple[Requirement, ...] | None = None


class NodeSelector(codec.Object, frozen=True):
    node_selector_terms: tuple[NodeTerm, ...] | None = None


def selects(selector: LabelSelector | None, labels: Labels) -> bool:
    """Return whether labels are selected; no selector selects none, an empty one all."""
    if selector is None:
        return False
    wanted = selector.match_labels or {}
    if any(labels.get(key) != value for key, value in wanted.items()):
        return False
    return _meets_all(selector.match_expressions, labels)


def selects_node(selector: NodeSelector, name: str, labels: Labels) -> bool:
    """Return whether any of the terms holds; one that says nothing holds for no node."""
    fields = {"metadata.name": name}
    return any(
        (term.match_expressions or term.match_fields)
        and _meets_all(term.match_expressions, labels)
        and _meets_all(term.match_fields, fields)
        for term in selector.node_selector_terms or ()
    )


def _meets_all(requirements: Sequence[Requirement] | None, labels: Labels) -> bool:
    return all(_meets(requirement, labels) for requirement in requirements or ())


def _meets(requirement: Requirement, labels: Labels) -> bool:
    key, operator, values = requirement.key, requirement.operator, requirement.values
    if operator in {"Gt", "Lt"}:  # of nodes only
        return key in labels and _compares(operator, labels[key] or "", values or ())
    return api_objects.meets(key, operator, values, labels)


def _compares(operator: str, value: str, values: Sequence[str]) -> bool:
    try:
        (limit,) = values
        return int(value) > int(limit) if operator == "Gt" else int(value) < int(limit)
    except ValueError:
        return False


_KEEP_OUT = ("NoSchedule", "NoExecute")


class Taint(codec.Object, frozen=True):
    key: str = ""
    value: str | None = None
    effect: str = ""


class Toleration(codec.Object, frozen=True):
    key: str | None = None
    operator: str | None = None
    value: str | None = None
    effect: str | None = None

    def tolerates(self, taint: Taint) -> bool:
        if self.effect and self.effect != taint.effect:
            return False
        if self.key and self.key != taint.key:
            return False
        if self.operator == "Exists":
            return True
        # Without a key only Exists says something.
        return bool(self.key) and (self.value or "") == (taint.value or "")


#: What a cordoned node has, whether its taint was written yet or not.
UNSCHEDULABLE = Taint(key="node.kubernetes.io/unschedulable", effect="NoSchedule")


def tolerates_all(tolerations: Sequence[Toleration], taints: Iterable[Taint]) -> bool:
    """Return whether no taint keeps a pod out; some only advise."""
    return all(taint.effect not in _KEEP_OUT or tolerates(tolerations, taint) for taint in taints)


def tolerates(tolerations: Sequence[Toleration], taint: Taint) -> bool:
    return any(toleration.tolerates(taint) for toleration in tolerations)
