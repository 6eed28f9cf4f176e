"""A pod that asks for a MIG profile the cluster does not have gets the next one that it has.

Each container is moved down its profile's chain (`hami.admission.chains`) to the first profile that
exists, and behind the last to the GPU itself: whole, or as a share of the profile's size. What was
done is written into an annotation, `3g.30gb->2g.20gb`. A profile that exists is left alone, even if
all of its instances are taken: that is the scheduler's business. In `available` mode it is ours,
too; where nothing is free, the pod waits for what exists.
"""

from __future__ import annotations

import collections
import enum
from collections.abc import Mapping

import msgspec

from hami.admission import edits
from hami.admission.chains import Chains
from hami.admission.inventory import Inventory
from hami.admission.refusal import Refusal, invalid
from hami.placement.request import WHOLE_CARD
from hami.vendors.row import Vendor
from hami.wire import annotation_keys, errors, mig_profile, objects, quantity
from hami.wire.mig_profile import Profile
from hami.wire.objects import Container, ContainerKind, Pod

GPU = "gpu"
"""The end of every chain, in annotation and metric."""


class Mode(enum.StrEnum):
    """When a profile counts as there."""

    OFF = "off"
    #: Some node has it.
    TYPE = "type"
    #: Some node has it, and enough of it is not asked for yet.
    AVAILABLE = "available"


class End(enum.StrEnum):
    """What the end of a chain is."""

    SHARE = "share"
    WHOLE = "whole"


class Plan(msgspec.Struct, frozen=True):
    """How profiles are replaced."""

    mode: Mode
    end: End
    chains: Chains
    #: Whose GPU is the end of the chain.
    vendor: Vendor


class Step(msgspec.Struct, frozen=True):
    """One container's profile and what it became."""

    container: str
    origin: str
    to: str

    def __str__(self) -> str:
        return f"{self.origin}->{self.to}"


def move(pod: Pod, plan: Plan, inventory: Inventory) -> tuple[Pod, tuple[Step, ...]]:
    """Return the pod with profiles that exist, and what was replaced; raises Refusal."""
    if plan.mode is Mode.OFF:
        return pod, ()
    steps: list[Step] = []
    #: What those containers of this pod take that run on while later ones start.
    running: collections.Counter[str] = collections.Counter()

    def edit(kind: ContainerKind, container: Container) -> Container:
        taken = running + _cards(container, plan)
        for profile, number in _asked(container, plan.chains):
            target = _target(profile, number, plan, inventory, taken)
            taken[_resource(target, plan)] += number
            if target is profile:
                container = _with_limit(container, profile, number)
                continue
            container = _replaced(container, profile, number, target, plan)
            to = target.name if target is not None else GPU
            steps.append(Step(container.name or "", profile.name, to))
        if kind is not ContainerKind.INIT:
            running.update(taken - running)
        return container

    moved = edits.containers(pod, edit)
    return (_noted(moved, steps) if steps else moved), tuple(steps)


def _with_limit(container: Container, profile: Profile, number: int) -> Container:
    """Return a container whose request has a limit beside it, as the API server will have it."""
    limits = (container.resources and container.resources.limits) or {}
    if limits.get(profile.resource) is not None:
        return container
    return edits.amounts(container, limits={profile.resource: str(number)})


def _asked(container: Container, chains: Chains) -> list[tuple[Profile, int]]:
    """Return the profiles of our chains that a container asks for, in the order of their names."""
    resources = container.resources or objects.Resources()
    names = sorted({*(resources.limits or ()), *(resources.requests or ())})
    asked = []
    for resource in names:
        profile = chains.profiles.get(resource.removeprefix(mig_profile.RESOURCE_PREFIX))
        if profile is None or profile.resource != resource:
            continue
        amount = container.amount(resource)
        try:
            number = quantity.exact_integer(
                amount if amount is not None else 0,
                what=f"container {container.name}, {resource}",
                remedy="ask for a whole number of instances",
            )
        except errors.WireError as error:
            raise invalid(str(error)) from error
        if number:
            asked.append((profile, number))
    return asked


def _cards(container: Container, plan: Plan) -> collections.Counter[str]:
    """Return the GPUs that a container asks for besides; what cannot be read is judged later."""
    resource = plan.vendor.resources.count
    amount = container.amount(resource)
    if amount is None:
        return collections.Counter()
    try:
        return collections.Counter({resource: quantity.exact_integer(amount, what=resource)})
    except errors.WireError:
        return collections.Counter()


def _resource(candidate: Profile | None, plan: Plan) -> str:
    return candidate.resource if candidate is not None else plan.vendor.resources.count


def _target(
    profile: Profile, number: int, plan: Plan, inventory: Inventory, taken: Mapping[str, int]
) -> Profile | None:
    """Return what to ask for in place of a profile: itself, one after it, or None, the GPU."""
    candidates: list[Profile | None] = [profile, *plan.chains.after(profile.name), None]
    names = {_resource(each, plan): each for each in candidates}
    if plan.mode is Mode.AVAILABLE:
        for resource, candidate in names.items():
            if inventory.available(resource, number + taken.get(resource, 0)):
                return candidate
    for resource, candidate in names.items():
        if inventory.exists(resource):
            return candidate
    tried = ", ".join(names)
    raise Refusal(
        f"the cluster has no GPU that could run this pod: it asks for {profile.resource}, and no "
        f"node offers any of {tried}; add a node with one of them, or ask for another resource"
    )


def _replaced(
    container: Container, profile: Profile, number: int, target: Profile | None, plan: Plan
) -> Container:
    if target is not None:
        given = {target.resource: str(_already(container, target.resource) + number)}
    else:
        given = _gpu(container, profile, number, plan)
    return edits.amounts(container, without=(profile.resource,), limits=given, requests=given)


def _gpu(container: Container, profile: Profile, number: int, plan: Plan) -> dict[str, str]:
    names = plan.vendor.resources
    already = _already(container, names.count)
    given = {names.count: str(already + number)}
    whole = plan.end is End.WHOLE or profile.cores == WHOLE_CARD or not names.memory
    sizes = (names.memory, names.memory_percentage, names.cores)
    if (already and not whole) or any(
        size and container.amount(size) is not None for size in sizes
    ):
        raise Refusal(
            f"container {container.name}: {profile.resource} does not exist in this cluster, and a "
            f"GPU in its place cannot be told from the other GPUs it asks for ({names.count}, or "
            "another profile that is missing); put the two into containers of their own, or ask "
            "for one of them"
        )
    if whole:
        return given
    factor = max(plan.vendor.memory_factor, 1)
    given[names.memory] = str(-(-profile.memory // factor))
    if names.cores:
        given[names.cores] = str(profile.cores)
    return given


def _already(container: Container, resource: str) -> int:
    amount = container.amount(resource)
    if amount is None:
        return 0
    try:
        return quantity.exact_integer(amount, what=f"container {container.name}, {resource}")
    except errors.WireError as error:
        raise invalid(str(error)) from error


def _noted(pod: Pod, steps: list[Step]) -> Pod:
    noted = pod.annotation(annotation_keys.FALLBACK)
    told = [part for part in noted.split(",") if part]
    value = ",".join(dict.fromkeys([*told, *(str(step) for step in steps)]))
    return edits.annotation(pod, annotation_keys.FALLBACK, value)
