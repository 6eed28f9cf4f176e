"""What our node should say of itself, and how that differs from what it says.

Pure; `hami.agent.node_status` writes the difference. Annotations and shares have nothing to do with
each other but for one key: the names of the resources that we put into the node's status stand in
an annotation, so that a later agent knows which of them are its own to remove. What stands there
under other names was written by somebody else, and stays.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from hami.vendors.table import AnnotationKeys
from hami.wire import errors, node_marks, objects, quantity, text_values


class Advertisement(msgspec.Struct, frozen=True, kw_only=True):
    #: None: the annotation must not be there.
    annotations: Mapping[str, str | None]
    #: Of the node's status; empty: none of ours.
    shares: Mapping[str, int]

    def without(self, key: str) -> Advertisement:
        """Return the same, but for one annotation that must not be there."""
        return msgspec.structs.replace(self, annotations={**self.annotations, key: None})


def advertisement(
    keys: AnnotationKeys,
    *,
    register: str | None,
    scores: str | None,
    late: bool,
    lock_reason: str,
    shares: Mapping[str, int] | None,
) -> Advertisement:
    """Return what the node should say; without cards to register it says nothing of cards."""
    return Advertisement(
        annotations={
            keys.register: register,
            keys.pair_scores: scores if register is not None else None,
            # Marked with the very value that it is written with: one patch carries both.
            keys.binding: node_marks.late_binding_mark(register)
            if register is not None and late
            else None,
            keys.lock_reason: (lock_reason or None) if register is not None and not late else None,
        },
        shares=dict(shares or {}),
    )


def annotation_changes(
    node: objects.Node, wanted: Advertisement, keys: AnnotationKeys
) -> dict[str, str | None]:
    """Return the annotations that differ, as a merge patch has them: null removes."""
    kept = sorted({*wanted.shares, *_stale(node, wanted, keys)})
    target = {**wanted.annotations, keys.shares: ",".join(kept) or None}
    return {key: value for key, value in target.items() if node.annotations.get(key) != value}


def share_changes(
    node: objects.Node, wanted: Advertisement, keys: AnnotationKeys
) -> dict[str, dict[str, str | None]]:
    """Return what differs in the node's status, as a merge patch has it."""
    removed: dict[str, str | None] = dict.fromkeys(_stale(node, wanted, keys))
    target = removed | {name: str(amount) for name, amount in wanted.shares.items()}
    changes = {
        "capacity": _differing(node.capacity, target),
        "allocatable": _differing(node.allocatable, target),
    }
    return {place: differing for place, differing in changes.items() if differing}


def _differing(
    there: Mapping[str, objects.Amount | None], target: Mapping[str, str | None]
) -> dict[str, str | None]:
    return {
        name: value
        for name, value in target.items()
        if (name in there if value is None else _amount(there.get(name)) != int(value))
    }


def _stale(node: objects.Node, wanted: Advertisement, keys: AnnotationKeys) -> list[str]:
    """Return the resources that we put there once, and that must go."""
    return [
        name
        for name in text_values.comma_list(node.annotation(keys.shares))
        if name not in wanted.shares and (name in node.capacity or name in node.allocatable)
        if _is_extended(name)
    ]


def _is_extended(name: str) -> bool:
    """Whatever the annotation says, cpu and memory are never ours."""
    try:
        quantity.check_resource_name(name, what="resource")
    except errors.WireError:
        return False
    return True


def _amount(amount: objects.Amount | None) -> int | None:
    if amount is None:
        return None
    try:
        return quantity.exact_integer(amount, what="amount", high=quantity.INT64_MAX)
    except errors.WireError:
        return None  # differs from every wish, and is put right
