"""Taints of nodes, and pods that bear them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from hami.wire import codec

_KEEP_OUT = ("NoSchedule", "NoExecute")


class Taint(codec.Object, frozen=True):
    key: str = ""
    value: str | None = None
    effect: str = ""

    def __str__(self) -> str:
        return f"{{{self.key}: {self.value or ''}}}"


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


def untolerated(taints: Iterable[Taint], tolerations: Sequence[Toleration]) -> Taint | None:
    """Return the first taint that keeps a pod out, if there is one."""
    for taint in taints:
        if taint.effect in _KEEP_OUT and not tolerates(tolerations, taint):
            return taint
    return None


def tolerates(tolerations: Sequence[Toleration], taint: Taint) -> bool:
    return any(toleration.tolerates(taint) for toleration in tolerations)
