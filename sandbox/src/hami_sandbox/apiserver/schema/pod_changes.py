"""What of a pod may be changed once it is there."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from hami_sandbox.apiserver.refusals import Object
from hami_sandbox.apiserver.schema import causes
from hami_sandbox.apiserver.schema.causes import Cause

_PARTS = ("containers", "initContainers")
_FIXED = (
    "pod updates may not change fields other than `spec.containers[*].image`,"
    "`spec.initContainers[*].image`,`spec.activeDeadlineSeconds`,`spec.tolerations` (only "
    "additions to existing tolerations),`spec.terminationGracePeriodSeconds` (allow it to be set "
    "to 1 if it was previously negative)"
)
_FREE = ("activeDeadlineSeconds", "tolerations")
#: What may still be narrowed while a gate holds the pod back.
_FREE_BEHIND_GATE = ("nodeSelector", "affinity", "schedulingGates")


def check(new: Object, old: Object) -> Iterator[Cause]:
    """Yield what of the change of a pod's spec is not allowed."""
    for part in _PARTS:
        if len(new.get(part) or ()) != len(old.get(part) or ()):
            yield causes.forbidden(f"spec.{part}", "pod updates may not add or remove containers")
            return
    yield from _deadline(new.get("activeDeadlineSeconds"), old.get("activeDeadlineSeconds"))
    yield from _tolerations(new.get("tolerations") or [], old.get("tolerations") or [])
    yield from _gates(new, old)
    free = (*_FREE, *(_FREE_BEHIND_GATE if old.get("schedulingGates") else ()))
    changed = [
        name
        for name in sorted({*new, *old})
        if name not in free and _fixed(name, new) != _fixed(name, old)
    ]
    if changed:
        told = ", ".join(f"spec.{name}" for name in changed)
        yield causes.forbidden("spec", f"{_FIXED}\nchanged: {told}")


def _fixed(name: str, spec: Object) -> Any:
    value = spec.get(name)
    if name in _PARTS and value:
        return [{**each, "image": ""} for each in value]
    return value


def _deadline(new: int | None, old: int | None) -> Iterator[Cause]:
    field = "spec.activeDeadlineSeconds"
    if old is None or new == old:
        return
    if new is None:
        yield causes.invalid(field, None, "must not update from a positive integer to nil value")
    elif new > old:
        yield causes.invalid(field, new, "must be less than or equal to previous value")


def _tolerations(new: list[Any], old: list[Any]) -> Iterator[Cause]:
    left = [{**each, "tolerationSeconds": None} for each in new]
    if any({**each, "tolerationSeconds": None} not in left for each in old):
        told = "existing toleration can not be modified except its tolerationSeconds"
        yield causes.forbidden("spec.tolerations", told)


def _gates(new: Object, old: Object) -> Iterator[Cause]:
    before = old.get("schedulingGates") or ()
    for place, gate in enumerate(new.get("schedulingGates") or ()):
        if gate not in before:
            told = "only deletion is allowed, but found new scheduling gate"
            yield causes.forbidden(f"spec.schedulingGates[{place}]", f"{told} '{gate.get('name')}'")
