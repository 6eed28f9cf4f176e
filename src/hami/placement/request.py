"""A pod's request: cards per container, the cards its user accepts, policies.

`parse` reads a pod once, strictly: a value that breaks a rule refuses the pod with a message that
names container, resource, value, rule and remedy (HAMi lets such pods pass as pods without GPU, and
they fail on the node). `None` is a pod that asks for no card. `totals` is the one function by which
webhook and scheduler add a pod up. The rules are in docs/placement.md, section 1. No numpy here.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence

import msgspec

from hami.placement import policy
from hami.vendors.card_request import CardRequest
from hami.vendors.families import Families
from hami.vendors.table import Vendor
from hami.wire import annotation_keys, errors, objects, shares, text_values
from hami.wire.objects import ContainerKind

MAX_CONTAINERS = 100
"""With cards, in one pod: each costs time on every node, and more are a mistake or an attack."""

MAX_TYPES = 1000
"""Product names in one list: more than any vendor sells."""


class Defaults(msgspec.Struct, frozen=True):
    """Policies of pods that name none; the scheduler's flags set them."""

    node_policy: str = policy.BINPACK
    gpu_policy: str = policy.SPREAD

    def __post_init__(self) -> None:
        policy.parse_node_policy(self.node_policy, "")
        policy.parse_gpu_policy(self.gpu_policy, "")


class ContainerRequest(msgspec.Struct, frozen=True):
    name: str
    kind: ContainerKind
    cards: tuple[CardRequest, ...] = ()


class CardSelector(msgspec.Struct, frozen=True):
    """The cards of one vendor that the user accepts; empty is all."""

    use_types: tuple[str, ...] = ()
    nouse_types: tuple[str, ...] = ()
    use_uuids: frozenset[str] = frozenset()
    nouse_uuids: frozenset[str] = frozenset()
    mode: str = ""
    numa_bind: bool = False


class Totals(msgspec.Struct, frozen=True):
    """A pod added up for one vendor: the most it has at one time."""

    #: Cards, which are also kubelet's device ids.
    count: int
    #: MiB over all cards. Percentages are unknown before a card is chosen, and count 0.
    memory: int
    #: Percent over all cards.
    cores: int


class PodRequest(msgspec.Struct, frozen=True):
    """Everything placement needs to know of a pod."""

    uid: str
    namespace: str
    name: str
    containers: tuple[ContainerRequest, ...]
    node_policy: str
    gpu_policy: policy.GpuPolicy
    weights: policy.Weights
    #: By vendor name, for every vendor asked for, in the order of the vendor table.
    selectors: Mapping[str, CardSelector]

    @property
    def kinds(self) -> tuple[ContainerKind, ...]:
        return tuple(container.kind for container in self.containers)

    def requests(self) -> Iterator[tuple[int, CardRequest]]:
        """Yield (container index, request) in the order in which they are fitted."""
        for index, container in enumerate(self.containers):
            for cards in container.cards:
                yield index, cards

    def totals(self) -> dict[str, Totals]:
        """Add the pod up for every vendor it asks for."""
        return {vendor: self._total(vendor) for vendor in self.selectors}

    def _total(self, vendor: str) -> Totals:
        counts, memory, cores = [], [], []
        for container in self.containers:
            asked = [c for c in container.cards if c.vendor == vendor]
            counts.append((container.kind, sum(c.count for c in asked)))
            memory.append((container.kind, sum(c.count * c.memory for c in asked)))
            cores.append((container.kind, sum(c.count * c.cores for c in asked)))
        return Totals(shares.peak(counts), shares.peak(memory), shares.peak(cores))


def parse(
    pod: objects.Pod, vendors: Families | Sequence[Vendor], defaults: Defaults
) -> PodRequest | None:
    """Read what a pod asks for; None if it asks for no card. Raises WireError for a bad pod."""
    families = vendors if isinstance(vendors, Families) else Families(vendors)
    containers = tuple(
        ContainerRequest(
            name=container.name or "",
            kind=kind,
            cards=tuple(
                request
                for family in families.of_container(container)
                if (request := family.request(container)) is not None
            ),
        )
        for kind, container in pod.containers()
    )
    asked = {cards.vendor for container in containers for cards in container.cards}
    if not asked:
        return None
    _refuse_shared_lists(pod, [families.vendors[name] for name in families.sorted(asked)])
    asking = sum(bool(container.cards) for container in containers)
    if asking > MAX_CONTAINERS:
        raise errors.WireError(
            f"pod {pod.namespace}/{pod.name}",
            f"{asking} containers with cards",
            f"is more than the {MAX_CONTAINERS} a pod may have",
            "split the pod",
        )
    return PodRequest(
        uid=pod.uid,
        namespace=pod.namespace,
        name=pod.name,
        containers=containers,
        node_policy=policy.parse_node_policy(
            pod.annotation(annotation_keys.NODE_POLICY), defaults.node_policy
        ),
        gpu_policy=policy.parse_gpu_policy(
            pod.annotation(annotation_keys.GPU_POLICY), defaults.gpu_policy
        ),
        weights=policy.parse_weights(pod.annotations.get(annotation_keys.SCORING_WEIGHTS)),
        selectors={name: _selector(pod, families.vendors[name]) for name in families.sorted(asked)},
    )


def _refuse_shared_lists(pod: objects.Pod, vendors: Sequence[Vendor]) -> None:
    """Raise WireError if two vendors would write the same list: one would hide the other's."""
    seen: dict[str, Vendor] = {}
    for vendor in vendors:
        other = seen.setdefault(vendor.annotations.allocated, vendor)
        if other is not vendor and vendor.annotations.allocated:
            raise errors.WireError(
                f"pod {pod.namespace}/{pod.name}",
                f"{other.resources.count} and {vendor.resources.count}",
                f"need one list of cards each, but both have {vendor.annotations.allocated}",
                "ask for one of them, or split the pod",
            )


def shape_of(pod: PodRequest) -> Hashable:
    """Return all that decides where a pod fits: pods of one shape fit, or do not, together.

    Names of pods and containers are not in it: the pods of one job share a shape.
    """
    return (
        pod.namespace,
        tuple((container.kind, container.cards) for container in pod.containers),
        pod.node_policy,
        pod.gpu_policy,
        pod.weights,
        tuple(sorted(pod.selectors.items())),
    )


def _selector(pod: objects.Pod, vendor: Vendor) -> CardSelector:
    keys = vendor.annotations
    mode = pod.annotation(keys.mode)
    for key in (keys.use_type, keys.use_uuid):
        value = pod.annotation(key)
        if value.strip() and not text_values.comma_list(value):
            remedy = "name at least one card, or remove the annotation"
            raise errors.WireError(key, value, "names nothing, so no card would do", remedy)
    return CardSelector(
        use_types=_types(pod, keys.use_type),
        nouse_types=_types(pod, keys.nouse_type),
        use_uuids=frozenset(text_values.comma_list(pod.annotation(keys.use_uuid))),
        nouse_uuids=frozenset(text_values.comma_list(pod.annotation(keys.nouse_uuid))),
        mode=mode if mode.strip() else "",
        numa_bind=_numa_bind(pod.annotation(keys.numa_bind)),
    )


def _types(pod: objects.Pod, key: str) -> tuple[str, ...]:
    """Read a list of product names; each costs time on every decision, so there is a limit."""
    types = tuple(dict.fromkeys(text_values.comma_list(pod.annotation(key))))
    if len(types) > MAX_TYPES:
        rule = f"is more than the {MAX_TYPES} a list may have"
        raise errors.WireError(key, f"{len(types)} types", rule, "name fewer, or parts of names")
    return types


def _numa_bind(value: str) -> bool:
    try:
        return text_values.parse_bool(value, what="numa-bind")
    except errors.WireError:
        return False
