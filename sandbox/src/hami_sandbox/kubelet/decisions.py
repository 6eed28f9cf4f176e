"""Decide a pod's next steps; admit it onto the node.

Pure. Init containers run one after the other and each to its end; sidecars among them only have to
be up before the next one starts, and then live as long as the pod. Once a main container was
created, the init containers are never run again. The scheduler has checked already that a pod
fits; a pod that names its node itself was not checked.
"""

from __future__ import annotations

from collections.abc import Iterable
from fractions import Fraction

import msgspec

from hami.wire import quantity
from hami_sandbox.kubelet import pod as pods
from hami_sandbox.kubelet.attempts import Attempt, Histories, latest
from hami_sandbox.kubelet.devices.pods import AdmissionError
from hami_sandbox.kubelet.pod import Object


class Plan(msgspec.Struct, frozen=True):
    """Containers to start, in this order; one that ended before first waits its back-off."""

    start: tuple[str, ...] = ()
    #: No container will run again: running ones are to be stopped.
    over: bool = False


def plan(pod: Object, found: Histories) -> Plan:
    wanted: list[str] = []
    if not initialized(pod, found):
        for container in pods.init_containers(pod):
            attempt = latest(found, container["name"])
            if _passed(pod, container, found):
                if pods.is_sidecar(container) and not _running(attempt):
                    wanted.append(container["name"])
                continue
            if _failed_for_good(pod, container, attempt):
                return Plan(over=True)
            if not _running(attempt):
                wanted.append(container["name"])
            return Plan(tuple(wanted))
    else:
        wanted += [
            container["name"]
            for container in pods.init_containers(pod)
            if pods.is_sidecar(container) and not _running(latest(found, container["name"]))
        ]
    alive = False
    for container in pods.containers(pod):
        attempt = latest(found, container["name"])
        if _running(attempt):
            alive = True
        elif attempt is None or not attempt.exited or _restarts(pod, container, attempt):
            alive = True
            wanted.append(container["name"])
    return Plan(tuple(wanted)) if alive else Plan(over=True)


def stopping(pod: Object, found: Histories) -> tuple[str, ...]:
    """Return which running containers of an ending pod are to be stopped now.

    Sidecars come after all others, the last one first: the others may need them to the end.
    """
    sidecars = [c["name"] for c in pods.init_containers(pod) if pods.is_sidecar(c)]
    running = [name for name, history in found.items() if _running(history.latest)]
    others = tuple(name for name in running if name not in sidecars)
    if others:
        return others
    return tuple(name for name in reversed(sidecars) if name in running)[:1]


def initialized(pod: Object, found: Histories) -> bool:
    """Return whether init containers are done."""
    return any(container["name"] in found for container in pods.containers(pod)) or all(
        _passed(pod, container, found) for container in pods.init_containers(pod)
    )


def _passed(pod: Object, container: Object, found: Histories) -> bool:
    """Return whether the next init container may run."""
    attempt = latest(found, container["name"])
    if attempt is None:
        return False
    if not pods.is_sidecar(container):
        return attempt.exited and attempt.exit_code == 0
    return attempt.running or _followed(pod, container, found)


def _followed(pod: Object, container: Object, found: Histories) -> bool:
    """Return whether a later container was created: then this one was up once."""
    names = [each["name"] for each in pods.in_order(pod)]
    return any(name in found for name in names[names.index(container["name"]) + 1 :])


def _running(attempt: Attempt | None) -> bool:
    return attempt is not None and attempt.running


def _failed_for_good(pod: Object, container: Object, attempt: Attempt | None) -> bool:
    if pods.is_sidecar(container) or attempt is None or not attempt.exited:
        return False
    return attempt.exit_code != 0 and pods.restart_policy(pod) == "Never"


def _restarts(pod: Object, container: Object, attempt: Attempt) -> bool:
    policy = container.get("restartPolicy") or pods.restart_policy(pod)
    return policy == "Always" or (policy == "OnFailure" and attempt.exit_code != 0)


_MILLI = 1000


class Room(msgspec.Struct, frozen=True):
    """What a node has for pods."""

    cpu: str
    memory: str
    pods: int


def check_room(pod: Object, others: Iterable[Object], room: Room) -> None:
    """Raise AdmissionError if the pod does not fit."""
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
