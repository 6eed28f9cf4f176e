"""Replace a MIG profile that the cluster does not have by the next in its chain.

A chain is a list of profiles, the largest first; after its last one comes the GPU itself: whole, or
a share of the profile's size. `move` takes each container down the chain to the first profile that
exists and records the step in an annotation, `3g.30gb->2g.20gb`. A profile that exists stays, even
if all its instances are taken: the scheduler waits for one. In `available` mode free instances
count, too; if none is free, the pod waits for what exists.

The built-in chains are NVIDIA's own profiles; a file replaces them all. A profile has the same
successor in every chain, so the result does not depend on the order of chains.
"""

from __future__ import annotations

import collections
import enum
import itertools
import os
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from hami.admission import edits
from hami.admission.errors import Refusal, invalid
from hami.admission.mig_offer import MigOffer
from hami.vendors import config_file, container_edits
from hami.vendors.config_file import ConfigError
from hami.vendors.family import WHOLE_CARD
from hami.vendors.table import Vendor
from hami.wire import annotation_keys, errors, mig, objects, quantity
from hami.wire.mig import Profile
from hami.wire.objects import Container, ContainerKind, Pod

GPU = "gpu"
"""The end of every chain, as annotation and metric name it."""

#: By product; the first is the chain of the MIG webhook that this one is compatible with.
BUILT_IN: Mapping[str, Sequence[str]] = {
    "first": ("3g.30gb", "2g.20gb", "1g.10gb"),
    "A100 40 GB": ("7g.40gb", "4g.20gb", "3g.20gb", "2g.10gb", "1g.5gb"),
    "A100 and H100 80 GB": ("7g.80gb", "4g.40gb", "3g.40gb", "2g.20gb", "1g.10gb"),
    "H100 94 GB": ("7g.94gb", "4g.47gb", "3g.47gb", "2g.24gb", "1g.12gb"),
    "H100 96 GB": ("7g.96gb", "4g.48gb", "3g.48gb", "2g.24gb", "1g.12gb"),
    "H200": ("7g.141gb", "4g.71gb", "3g.71gb", "2g.35gb", "1g.18gb"),
    "B200": ("7g.180gb", "4g.90gb", "3g.90gb", "2g.45gb", "1g.23gb"),
}

_KEYS = ("profile", "memory", "cores")
_EXAMPLE = "write for example\nchains:\n- [3g.40gb, 2g.20gb, 1g.10gb]"


class Mode(enum.StrEnum):
    """When a profile counts as present."""

    OFF = "off"
    #: A node has it.
    TYPE = "type"
    #: A node has it, and enough of it is free.
    AVAILABLE = "available"


class End(enum.StrEnum):
    """The end of a chain: a share of the profile's size, or a whole card."""

    SHARE = "share"
    WHOLE = "whole"


class Chains(msgspec.Struct, frozen=True):
    """Every profile of every chain."""

    profiles: Mapping[str, Profile]
    #: Name of the profile to try next; the last of a chain has none.
    next: Mapping[str, str]

    def after(self, name: str) -> Iterable[Profile]:
        """Yield the profiles after one, in order; the GPU after the last is not among them."""
        while name in self.next:
            name = self.next[name]
            yield self.profiles[name]


class Plan(msgspec.Struct, frozen=True):
    """How profiles are replaced."""

    mode: Mode
    end: End
    chains: Chains
    #: The vendor of the GPU at the end of every chain.
    vendor: Vendor


class Step(msgspec.Struct, frozen=True):
    """A container's profile and its replacement."""

    container: str
    origin: str
    to: str

    def __str__(self) -> str:
        return f"{self.origin}->{self.to}"


def move(pod: Pod, plan: Plan, mig_offer: MigOffer) -> tuple[Pod, tuple[Step, ...]]:
    """Return the pod with profiles that exist, and what was replaced.

    Raises Refusal if no node has a GPU.
    """
    if plan.mode is Mode.OFF:
        return pod, ()
    steps: list[Step] = []
    #: Resources of the containers that keep running while later ones start.
    running: collections.Counter[str] = collections.Counter()

    def edit(kind: ContainerKind, container: Container) -> Container:
        taken = running + _cards(container, plan)
        for profile, number in _asked(container, plan.chains):
            target = _target(profile, number, plan, mig_offer, taken)
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
    """Return the container with a limit beside its request, which the API server requires."""
    limits = (container.resources and container.resources.limits) or {}
    if limits.get(profile.resource) is not None:
        return container
    return container_edits.amounts(container, limits={profile.resource: str(number)})


def _asked(container: Container, chains: Chains) -> list[tuple[Profile, int]]:
    """Return the profiles of our chains that a container asks for, in the order of their names."""
    resources = container.resources or objects.Resources()
    names = sorted({*(resources.limits or ()), *(resources.requests or ())})
    asked = []
    for resource in names:
        profile = chains.profiles.get(resource.removeprefix(mig.RESOURCE_PREFIX))
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
    """Return the GPUs that a container asks for besides; an unreadable amount is refused later."""
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
    profile: Profile, number: int, plan: Plan, mig_offer: MigOffer, taken: Mapping[str, int]
) -> Profile | None:
    """Return the profile to ask for: itself or a later one of the chain; None: the GPU."""
    candidates: list[Profile | None] = [profile, *plan.chains.after(profile.name), None]
    names = {_resource(each, plan): each for each in candidates}
    if plan.mode is Mode.AVAILABLE:
        for resource, candidate in names.items():
            if mig_offer.available(resource, number + taken.get(resource, 0)):
                return candidate
    for resource, candidate in names.items():
        if mig_offer.exists(resource):
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
    return container_edits.amounts(
        container, without=(profile.resource,), limits=given, requests=given
    )


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
            f"GPU in its place cannot be distinguished from the other GPUs it asks for "
            f"({names.count}, or another profile that is missing); put the two into containers "
            "of their own, or ask for one of them"
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
    before = [part for part in pod.annotation(annotation_keys.FALLBACK).split(",") if part]
    value = ",".join(dict.fromkeys([*before, *(str(step) for step in steps)]))
    return edits.annotation(pod, annotation_keys.FALLBACK, value)


def built_in() -> Chains:
    chains = [[mig.parse_profile(name) for name in names] for names in BUILT_IN.values()]
    return _joined(chains, source="built-in chains")


def load(path: str | os.PathLike[str]) -> Chains:
    """Read the file with the cluster's own chains."""
    return parse(
        config_file.read(path, remedy="check --mig-fallback-file and the mount of the ConfigMap"),
        source=os.fspath(path),
    )


def parse(text: str, *, source: str) -> Chains:
    """Check the text of a file of chains; `source` names it in errors."""
    data = config_file.load(text, source=source)
    if not isinstance(data, dict) or set(data) != {"chains"}:
        rule = "the file must hold one key, chains"
        raise ConfigError(source=source, place="", rule=rule, remedy=_EXAMPLE)
    given = data["chains"]
    if not isinstance(given, list) or not given:
        raise ConfigError(
            source=source,
            place="chains",
            value=given,
            rule="must be a list of at least one chain",
            remedy=_EXAMPLE,
        )
    chains = [_chain(chain, source, f"chains[{place}]") for place, chain in enumerate(given)]
    return _joined(chains, source=source)


def _chain(given: object, source: str, place: str) -> list[Profile]:
    if not isinstance(given, list) or not given:
        rule = "must be a list of profiles, the largest first"
        raise ConfigError(source=source, place=place, value=given, rule=rule, remedy=_EXAMPLE)
    return [_profile(item, source, f"{place}[{position}]") for position, item in enumerate(given)]


def _profile(given: object, source: str, place: str) -> Profile:
    try:
        if isinstance(given, str):
            return mig.parse_profile(given.strip())
        entry = config_file.Section(given, source=source, path=place)
        base = mig.parse_profile(entry.text("profile", ""))
    except errors.WireError as error:
        raise ConfigError(
            source=source, place=place, value=given, rule=error.rule, remedy=error.remedy
        ) from error
    profile = Profile(
        name=base.name,
        memory=entry.whole("memory", base.memory, low=1),
        cores=entry.whole("cores", base.cores, low=1, high=100),
    )
    unknown = [key for key in given if key not in _KEYS] if isinstance(given, dict) else []
    if unknown:
        raise ConfigError(
            source=source,
            place=f"{place}.{unknown[0]}",
            rule=f"no such key{config_file.nearest(unknown[0], _KEYS)}",
            remedy="an entry has profile, and optionally memory (MiB) and cores (percent)",
        )
    return profile


def _joined(chains: Iterable[Sequence[Profile]], *, source: str) -> Chains:
    profiles: dict[str, Profile] = {}
    following: dict[str, str] = {}
    last: list[str] = []
    for chain in chains:
        seen: set[str] = set()
        for profile in chain:
            known = profiles.setdefault(profile.name, profile)
            if known != profile:
                rule = "is given two different shares"
                remedy = "give memory and cores once, or the same everywhere"
                raise _error(source, profile.name, rule, remedy)
            if profile.name in seen:
                rule = "comes after itself"
                raise _error(source, profile.name, rule, "name each profile once in a chain")
            seen.add(profile.name)
        for upper, lower in itertools.pairwise(chain):
            if following.setdefault(upper.name, lower.name) != lower.name:
                rule = "is followed by different profiles in two chains"
                remedy = "let each profile have one successor everywhere"
                raise _error(source, upper.name, rule, remedy)
        last.append(chain[-1].name)
    # This also excludes cycles: on one, the last profile of a chain would have a successor.
    for name in last:
        if name in following:
            rule = "ends one chain, and goes on in another"
            raise _error(source, name, rule, "let each profile have one successor everywhere")
    return Chains(profiles, following)


def _error(source: str, name: str, rule: str, remedy: str) -> ConfigError:
    return ConfigError(source=source, place="chains", value=name, rule=rule, remedy=remedy)
