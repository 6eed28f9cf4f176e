"""Whether a pod fits onto its node beside the others, in kubelet's words where it does not. Pure.

The scheduler has looked at this already; a pod that names its node itself came past it.
"""

from __future__ import annotations

from collections.abc import Iterable
from fractions import Fraction

import msgspec

from hami.wire import quantity
from hami_sandbox.kubelet import pod as pods
from hami_sandbox.kubelet.devices.errors import AdmissionError
from hami_sandbox.kubelet.pod import Object

_MILLI = 1000


class Room(msgspec.Struct, frozen=True):
    """What a node has for pods."""

    cpu: str
    memory: str
    pods: int


def check_room(pod: Object, others: Iterable[Object], room: Room) -> None:
    """Raise AdmissionError where the pod is one too many."""
    held = list(others)
    if len(held) >= room.pods:
        _refuse("pods", 1, len(held), room.pods)
    for resource, capacity, unit in (("cpu", room.cpu, _MILLI), ("memory", room.memory, 1)):
        asked = requested(pod, resource)
        used = sum((requested(other, resource) for other in held), Fraction(0))
        most = quantity.parse(capacity, what=f"{resource} of the node")
        if asked and asked + used > most:
            _refuse(resource, *(int(amount * unit) for amount in (asked, used, most)))


def requested(pod: Object, resource: str) -> Fraction:
    """Return the most that a pod needs of a resource at one time."""
    sidecars = Fraction(0)
    peak = Fraction(0)
    for container in pods.init_containers(pod):
        amount = _amount(container, resource)
        peak = max(peak, sidecars + amount)
        if pods.is_sidecar(container):
            sidecars += amount
    mains = sum((_amount(each, resource) for each in pods.containers(pod)), Fraction(0))
    return max(peak, sidecars + mains)


def _amount(container: Object, resource: str) -> Fraction:
    resources = container.get("resources") or {}
    amount = (resources.get("requests") or resources.get("limits") or {}).get(resource, "0")
    return quantity.parse(amount, what=f"request of {resource}")


def _refuse(resource: str, asked: int, used: int, most: int) -> None:
    raise AdmissionError(
        f"OutOf{resource}",
        f"Node didn't have enough resource: {resource}, "
        f"requested: {asked}, used: {used}, capacity: {most}",
    )
