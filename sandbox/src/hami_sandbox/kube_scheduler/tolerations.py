"""Taints of nodes, and pods that bear them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from hami.wire import codec

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
