"""The whole filter of docs/placement.md, slow and obvious: the oracle of the vector code.

One function (or a few) per section of that page, in the order of the page and with its words; plain
loops over plain numbers, everything recomputed from the API objects for every pod. It imports only
`hami.wire`, so that an error of the device tables, the ledger or the placement cannot repeat here.

Change the page first, then this file and the product, each read from the page alone.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable, Mapping, Sequence

from hami.wire import annotation_keys as keys
from hami.wire import (
    comma_list,
    errors,
    go_values,
    node_register,
    objects,
    pod_devices,
    product_names,
    quantity,
)

INT32_MAX = 2**31 - 1
GPU_POLICIES = ("binpack", "spread", "mutex", "numa", "topology-aware")

Kind = objects.ContainerKind
Rule = Callable[[int, node_register.Device], str | None]
"""A vendor's own rule: column and card to the reason of its refusal, or None."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class RefVendor:
    """What the filter must know of a vendor; an empty name or key: the vendor has none."""

    word: str
    # Resources.
    count: str
    memory: str = ""
    percentage: str = ""
    cores: str = ""
    memory_factor: int = 1
    default_memory: int = 0
    default_cores: int = 0
    # Annotation keys: of the node, of the pod, wishes of the pod's user.
    register: str = ""
    cordon: str = ""
    allocated: str = ""
    use_type: str = ""
    nouse_type: str = ""
    use_uuid: str = ""
    nouse_uuid: str = ""
    mode: str = ""
    numa_bind: str = ""
    enforces_quota: bool = True
    bounded_by_ids: bool = True
    rule: Rule | None = None


@dataclasses.dataclass(kw_only=True)
class Answer:
    """What the filter says of a pod."""

    #: Why the request is refused as such.
    error: str | None = None
    #: No container asks for a card: the pod is not ours.
    passed_through: bool = False
    winner: str | None = None
    score: float | None = None
    #: By vendor word, for the requested vendors: the winner's cards, one slot per container.
    slots: dict[str, pod_devices.Slots] = dataclasses.field(default_factory=dict)
    #: Every refused node among those asked about.
    failed: dict[str, str] = dataclasses.field(default_factory=dict)
    #: What this case exercised, for the counts of the agreement test.
    traits: set[str] = dataclasses.field(default_factory=set, compare=False)


# Section 1: what a pod asks for.


@dataclasses.dataclass(frozen=True)
class Ask:
    """What one container asks of one vendor."""

    count: int
    #: MiB; 0: the percentage holds.
    memory: int
    #: Percent of each card; 0: absent.
    percentage: int
    cores: int


@dataclasses.dataclass(frozen=True)
class Weights:
    slot: int = 1
    core: int = 1
    memory: int = 1


@dataclasses.dataclass(frozen=True)
class Wish:
    """The whole request of a pod, read once."""

    pod: objects.Pod
    kinds: list[Kind]
    #: Per container, in order: its asks by vendor word; empty: it asks for no card.
    asks: list[dict[str, Ask]]
    node_policy: str
    #: The words of the GPU policy, trimmed, without empty ones.
    gpu_words: list[str]
    weights: Weights

    def wants(self, vendor: RefVendor) -> bool:
        return any(vendor.word in asks for asks in self.asks)


def read_wish(
    pod: objects.Pod, vendors: Sequence[RefVendor], node_policy: str, gpu_policy: str
) -> Wish | None:
    """Read the request; None when no container asks for a card."""
    kinds: list[Kind] = []
    asks: list[dict[str, Ask]] = []
    for kind, container in pod.containers():
        by_word: dict[str, Ask] = {}
        for vendor in vendors:
            ask = read_ask(container, vendor)
            if ask is not None:
                by_word[vendor.word] = ask
        kinds.append(kind)
        asks.append(by_word)
    if not any(asks):
        return None
    return Wish(
        pod=pod,
        kinds=kinds,
        asks=asks,
        node_policy=read_node_policy(pod, node_policy),
        gpu_words=read_gpu_policy(pod, gpu_policy),
        weights=read_weights(pod),
    )


def read_amount(container: objects.Container, resource: str, high: int = INT32_MAX) -> int | None:
    """Read a value from limits, else from requests; None: absent."""
    if not resource:
        return None
    amount = container.amount(resource)
    if amount is None:
        return None
    what = f"container {container.name}, {resource}"
    return quantity.exact_integer(amount, what=what, low=0, high=high)


def read_ask(container: objects.Container, vendor: RefVendor) -> Ask | None:
    count = read_amount(container, vendor.count) or 0
    if count == 0:
        return None
    factor = max(vendor.memory_factor, 1)
    memory = (read_amount(container, vendor.memory, INT32_MAX // factor) or 0) * factor
    percentage = read_amount(container, vendor.percentage, 100) or 0
    cores = read_amount(container, vendor.cores)
    if cores is None:
        cores = vendor.default_cores
    cores = min(cores, 100)
    if memory > 0:
        percentage = 0
    elif percentage == 0:
        memory = vendor.default_memory
        if memory == 0:
            percentage = 100
    return Ask(count=count, memory=memory, percentage=percentage, cores=cores)


def read_count(container: objects.Container, vendor: RefVendor) -> int:
    """Read only how many cards a container asks for, for the ids that pods hold."""
    return read_amount(container, vendor.count) or 0


def read_node_policy(pod: objects.Pod, default: str) -> str:
    value = pod.annotation(keys.NODE_POLICY)
    if not value.strip():
        return default
    if value not in ("binpack", "spread"):
        raise errors.WireError(keys.NODE_POLICY, value, "is not binpack or spread")
    return value


def read_gpu_policy(pod: objects.Pod, default: str) -> list[str]:
    value = pod.annotation(keys.GPU_POLICY)
    if not value.strip():
        value = default
    words = [word.strip() for word in value.split(",") if word.strip()]
    for word in words:
        if word not in GPU_POLICIES:
            raise errors.WireError(keys.GPU_POLICY, value, f"has the unknown word {word}")
    return words


def read_weights(pod: objects.Pod) -> Weights:
    key = keys.SCORING_WEIGHTS
    value = pod.annotations.get(key)
    if value is None:
        return Weights()
    found: dict[str, int] = {}
    for part in value.split(","):
        name, equals, number = (piece.strip() for piece in part.partition("="))
        if not equals or name not in ("slot", "core", "memory") or name in found:
            raise errors.WireError(key, value, "is not slot=<n>,core=<n>,memory=<n>")
        if not (number.isascii() and number.isdigit()) or int(number) > INT32_MAX:
            raise errors.WireError(key, value, f"has no whole number for {name}")
        found[name] = int(number)
    if len(found) != 3 or not any(found.values()):
        raise errors.WireError(key, value, "misses a weight, or all weights are 0")
    return Weights(**found)


def tokens_of(pod: objects.Pod, key: str) -> list[str]:
    """Read a comma list of the pod; empty: no constraint."""
    return list(comma_list.tokens(pod.annotation(key)))


def numa_bound(pod: objects.Pod, vendor: RefVendor) -> bool:
    try:
        return go_values.parse_bool(pod.annotation(vendor.numa_bind), what=vendor.numa_bind)
    except errors.WireError:
        return False


# Section 7: what a pod holds.


def peak(series: Iterable[tuple[Kind, int]]) -> int:
    running = 0
    highest = 0
    for kind, amount in series:
        if kind is Kind.INIT:
            highest = max(highest, running + amount)
        else:
            running += amount
    return max(highest, running)


def held_slots(
    pod: objects.Pod, vendor: RefVendor
) -> list[tuple[Kind, tuple[pod_devices.Grant, ...]]]:
    """Return what each container holds now: init containers that are all done hold nothing."""
    kinds = [kind for kind, _ in pod.containers()]
    slots = pod_devices.decode(pod.annotation(vendor.allocated))
    held = []
    for kind, slot in zip(kinds, slots, strict=bool(slots)):
        held.append((kind, () if kind is Kind.INIT and pod.init_done else slot))
    return held


def held_ids(pod: objects.Pod, vendor: RefVendor) -> int:
    return peak((kind, read_count(container, vendor)) for kind, container in pod.containers())


# Section 2: what a node has.


@dataclasses.dataclass
class Card:
    """A card of a node, and what is used of it in a state."""

    device: node_register.Device
    column: int
    cordoned: bool
    slots: int = 0
    memory: int = 0
    cores: int = 0


def cards_of(node: objects.Node, vendor: RefVendor, pods: Iterable[objects.Pod]) -> list[Card]:
    """Return the cards of a vendor by column, with what `pods` use on them."""
    value = node.annotation(vendor.register)
    devices = list(node_register.decode_json(value)) if value else []
    devices.sort(key=lambda device: (device.index, device.id))
    cordoned = list(comma_list.tokens(node.annotation(vendor.cordon)))
    cards = [Card(device, column, device.id in cordoned) for column, device in enumerate(devices)]
    for pod in pods:
        if pod.node_name == node.name and pod.annotation(vendor.allocated):
            add_pod(cards, held_slots(pod, vendor))
    return cards


def add_pod(cards: list[Card], held: list[tuple[Kind, tuple[pod_devices.Grant, ...]]]) -> None:
    """Add to each card the pod's peaks of slots, memory and cores on it."""
    for card in cards:
        slots: list[tuple[Kind, int]] = []
        memory: list[tuple[Kind, int]] = []
        cores: list[tuple[Kind, int]] = []
        for kind, grants in held:
            here = [grant for grant in grants if grant.uuid == card.device.id]
            slots.append((kind, 1 if here else 0))
            memory.append((kind, sum(grant.memory for grant in here)))
            cores.append((kind, sum(grant.cores for grant in here)))
        card.slots += peak(slots)
        card.memory += peak(memory)
        card.cores += peak(cores)


def allocatable_ids(node: objects.Node, vendor: RefVendor) -> int:
    amount = node.allocatable.get(vendor.count)
    if amount is None:
        return 0
    return quantity.exact_integer(amount, what=f"allocatable {vendor.count}")


def free_ids(node: objects.Node, vendor: RefVendor, pods: Iterable[objects.Pod]) -> int:
    held = sum(held_ids(pod, vendor) for pod in pods if pod.node_name == node.name)
    return allocatable_ids(node, vendor) - held


@dataclasses.dataclass(frozen=True)
class Case:
    """One question to the filter, after its pod was read."""

    wish: Wish
    vendors: Sequence[RefVendor]
    nodes: Mapping[str, objects.Node]
    #: The pods that count: neither finished nor an earlier life of this one.
    pods: list[objects.Pod]
    #: The quota of the pod's namespace by vendor word.
    quotas: Mapping[str, Quota]
    traits: set[str]

    def state_of(self, name: str) -> State:
        """Return the node as it is without this pod; fresh each time, since fitting changes it."""
        node = self.nodes.get(name)
        return {v.word: cards_of(node, v, self.pods) if node else [] for v in self.vendors}


# Section 3: node checks.

State = Mapping[str, list[Card]]
"""The cards of one node by vendor word."""


def has_no_ids(case: Case, node: objects.Node, state: State, vendor: RefVendor) -> bool:
    if not state[vendor.word] or not vendor.bounded_by_ids:
        return False
    return allocatable_ids(node, vendor) == 0


def has_no_card(case: Case, node: objects.Node, state: State, vendor: RefVendor) -> bool:
    return not state[vendor.word]


def has_too_few_cards(case: Case, node: objects.Node, state: State, vendor: RefVendor) -> bool:
    counts = [asks[vendor.word].count for asks in case.wish.asks if vendor.word in asks]
    return max(counts) > len(state[vendor.word])


def has_too_few_ids(case: Case, node: objects.Node, state: State, vendor: RefVendor) -> bool:
    if not vendor.bounded_by_ids:
        return False
    return free_ids(node, vendor, case.pods) < held_ids(case.wish.pod, vendor)


NODE_CHECKS = (
    (has_no_ids, "node unregistered"),
    (has_no_card, "Device type not found"),
    (has_too_few_cards, "NodeInsufficientDevice"),
    (has_too_few_ids, "NodeInsufficientDevice"),
)


def check_node(case: Case, node: objects.Node | None, state: State) -> str | None:
    """Return the text that refuses the node as a whole, or None."""
    if node is None or not any(state.values()):
        return "node unregistered"
    for applies, text in NODE_CHECKS:
        for vendor in case.vendors:
            if case.wish.wants(vendor) and applies(case, node, state, vendor):
                return text
    return None


# Section 6: quota.


@dataclasses.dataclass(frozen=True)
class Quota:
    """A vendor's quota in the pod's namespace; None: no limit."""

    memory_limit: int | None
    memory_used: int
    cores_limit: int | None
    cores_used: int


def quota_of(
    vendor: RefVendor,
    namespace: str,
    pods: Iterable[objects.Pod],
    quotas: Iterable[objects.ResourceQuota],
) -> Quota:
    memory_limits: list[int] = []
    cores_limits: list[int] = []
    for quota in quotas:
        if quota.namespace == namespace and vendor.enforces_quota:
            for resource, limits in ((vendor.memory, memory_limits), (vendor.cores, cores_limits)):
                amount = quota.hard.get(f"limits.{resource}") if resource else None
                if amount is not None:
                    limits.append(quantity.exact_integer(amount, what=f"limits.{resource}"))
    memory_used = 0
    cores_used = 0
    for pod in pods:
        if pod.namespace == namespace and pod.node_name and pod.annotation(vendor.allocated):
            held = held_slots(pod, vendor)
            memory_used += peak((kind, sum(g.memory for g in grants)) for kind, grants in held)
            cores_used += peak((kind, sum(g.cores for g in grants)) for kind, grants in held)
    return Quota(
        min(memory_limits) * max(vendor.memory_factor, 1) if memory_limits else None,
        memory_used,
        min(cores_limits) if cores_limits else None,
        cores_used,
    )


def over_quota(quota: Quota, ask: Ask, memory: int, running: Running) -> bool:
    """Say whether `ask.count` cards like this one, with `memory` each, pass a limit."""
    if quota.memory_limit is not None:
        more = ask.count * memory
        if more > 0 and quota.memory_used + running.memory + more > quota.memory_limit:
            return True
    if quota.cores_limit is not None:
        more = ask.count * ask.cores
        if more > 0 and quota.cores_used + running.cores + more > quota.cores_limit:
            return True
    return False


# Section 4: card checks.


@dataclasses.dataclass
class Running:
    """What the incoming pod has of a vendor in the state so far."""

    memory: int = 0
    cores: int = 0


def memory_on(card: Card, ask: Ask) -> int:
    """Return the m of the page: the memory the request takes on this card."""
    if ask.memory > 0:
        return ask.memory
    return card.device.devmem * ask.percentage // 100


def type_accepted(card: Card, pod: objects.Pod, vendor: RefVendor) -> bool:
    use = tokens_of(pod, vendor.use_type)
    nouse = tokens_of(pod, vendor.nouse_type)
    if use and not any(product_names.matches(token, card.device.type) for token in use):
        return False
    return not any(product_names.matches(token, card.device.type) for token in nouse)


def mode_accepted(card: Card, pod: objects.Pod, vendor: RefVendor) -> bool:
    value = pod.annotation(vendor.mode)
    if not value.strip() or not card.device.mode:
        return True
    return card.device.mode in value


def uuid_accepted(card: Card, pod: objects.Pod, vendor: RefVendor) -> bool:
    use = tokens_of(pod, vendor.use_uuid)
    nouse = tokens_of(pod, vendor.nouse_uuid)
    if use and card.device.id not in use:
        return False
    return card.device.id not in nouse


def refuse_card(  # noqa: C901, PLR0911, PLR0912  the thirteen rows of the page, in its order
    case: Case, vendor: RefVendor, card: Card, ask: Ask, running: Running
) -> str | None:
    """Return the first reason against this card, or None: it is eligible."""
    wish = case.wish
    device = card.device
    memory = memory_on(card, ask)
    if not device.health:
        return "CardNotHealth"
    if card.cordoned:
        return "CardCordoned"
    if not type_accepted(card, wish.pod, vendor):
        return "CardTypeMismatch"
    if not mode_accepted(card, wish.pod, vendor):
        return "ModeNotFit"
    if not uuid_accepted(card, wish.pod, vendor):
        return "CardUuidMismatch"
    if card.slots >= device.count:
        return "CardTimeSlicingExhausted"
    if "mutex" in wish.gpu_words and card.slots > 0:
        return "ExclusiveDeviceAllocateConflict"
    if over_quota(case.quotas[vendor.word], ask, memory, running):
        return "ResourceQuotaNotFit"
    if device.devmem - card.memory < memory:
        return "CardInsufficientMemory"
    if device.devcore - card.cores < ask.cores:
        return "CardInsufficientCore"
    if device.devcore == 100 and ask.cores == 100 and card.slots > 0:
        return "ExclusiveDeviceAllocateConflict"
    if device.devcore != 0 and card.cores >= device.devcore and ask.cores == 0:
        return "CardComputeUnitsExhausted"
    if vendor.rule is not None:
        return vendor.rule(card.column, device)
    return None


def failure_text(reasons: list[str], cards: int) -> str:
    """Write the reasons (one per refused card) of a node."""
    items = [f"{reasons.count(reason)}/{cards} {reason}" for reason in set(reasons)]
    return ", ".join(sorted(items))


# Section 5: which cards.


def device_score(card: Card, ask: Ask, weights: Weights) -> int:
    """Return the score as it is compared."""
    device = card.device
    if device.count == 0 or device.devcore == 0 or device.devmem == 0:
        raw = 0.0
    else:
        slot = weights.slot * ((card.slots + 1) / device.count)
        core = weights.core * ((card.cores + ask.cores) / device.devcore)
        memory = weights.memory * ((card.memory + memory_on(card, ask)) / device.devmem)
        raw = (slot + core + memory) * 10
    total = weights.slot + weights.core + weights.memory
    return min(math.floor(raw / total * 1048576 + 0.5), 2**40)


def chain_order(words: list[str], *, bound: bool) -> list[str]:
    """Return what a chain sorts by, in order and without duplicates."""
    names = {"binpack": "score high", "spread": "score low", "numa": "numa high"}
    order: list[str] = []
    for word in words:
        if word in names and names[word] not in order:
            order.append(names[word])
    if not order:
        order = ["score low"]
    if bound:
        order = ["numa high", *(name for name in order if name != "numa high")]
    return order


def card_order(words: list[str], *, bound: bool) -> list[str]:
    """Return what the cards are sorted by, as `score high`, `numa low` and so on."""
    if len(words) != 1 or words == ["numa"]:
        return chain_order(words, bound=bound)
    word = words[0]
    if bound:
        return ["numa low", "score high"] if word == "binpack" else ["numa high", "score low"]
    if word == "binpack":
        return ["score high", "numa high"]
    if word == "mutex":
        return ["slots low", "numa high"]
    return ["score low", "numa high"]


def sort_key(card: Card, ask: Ask, wish: Wish, *, bound: bool) -> tuple[int, ...]:
    """Return the key that puts the preferred card first, without the last tie-break."""
    values = {
        "score": device_score(card, ask, wish.weights),
        "numa": card.device.numa,
        "slots": card.slots,
    }
    key: list[int] = []
    for order in card_order(wish.gpu_words, bound=bound):
        name, direction = order.split()
        key.append(-values[name] if direction == "high" else values[name])
    return tuple(key)


def groups_by_numa(cards: list[Card]) -> list[list[Card]]:
    """Return the NUMA groups, in the order in which their first cards stand."""
    groups: dict[int, list[Card]] = {}
    for card in cards:
        groups.setdefault(card.device.numa, []).append(card)
    return list(groups.values())


def choose(
    case: Case, vendor: RefVendor, cards: list[Card], ask: Ask, running: Running
) -> tuple[list[Card], str]:
    """Return the cards for one container and vendor, or no cards and the node's text."""
    reasons: list[str] = []
    eligible: list[Card] = []
    for card in cards:
        reason = refuse_card(case, vendor, card, ask, running)
        if reason is None:
            eligible.append(card)
        else:
            reasons.append(reason)
    if ask.memory == 0 and len({card.device.devmem for card in eligible}) > 1:
        case.traits.add("percentage of mixed memory")

    bound = numa_bound(case.wish.pod, vendor)
    groups = groups_by_numa(eligible) if bound else [eligible]
    if not any(len(group) >= ask.count for group in groups):
        enough = len(eligible) >= ask.count
        reason = "NumaNotFit" if enough else "AllocatedCardsInsufficientRequest"
        reasons += [reason] * len(eligible)
        return [], failure_text(reasons, len(cards))
    return first_cards(case, eligible, ask, bound=bound), ""


def first_cards(case: Case, eligible: list[Card], ask: Ask, *, bound: bool) -> list[Card]:
    """Take the first cards in the order of the policy; there are enough."""

    def key(card: Card) -> tuple[int, ...]:
        return sort_key(card, ask, case.wish, bound=bound)

    # Highest column first, and Python's sort is stable: so goes the last tie.
    ordered = sorted(eligible, key=lambda card: card.column, reverse=True)
    ordered = sorted(ordered, key=key)
    if bound:
        groups = groups_by_numa(ordered)
        ordered = next(group for group in groups if len(group) >= ask.count)
    if len(ordered) > ask.count and key(ordered[ask.count - 1]) == key(ordered[ask.count]):
        case.traits.add("cards tied")
    return ordered[: ask.count]


def by_column(cards: list[Card]) -> list[Card]:
    """Return the chosen cards as they are listed, whatever the order of preference."""
    return sorted(cards, key=lambda card: card.column)


Slot = dict[str, tuple[pod_devices.Grant, ...]]
"""What one container is given, by vendor word."""


def fit_node(case: Case, state: State, order: list[int]) -> tuple[list[Slot] | None, str]:
    """Fit the containers in `order`; return the slots in container order, or the node's text.

    The state is changed.
    """
    wish = case.wish
    slots: list[Slot] = [{} for _ in wish.asks]
    running = {vendor.word: Running() for vendor in case.vendors}
    for index in order:
        for vendor in case.vendors:
            word = vendor.word
            ask = wish.asks[index].get(word)
            if ask is None:
                continue
            chosen, text = choose(case, vendor, state[word], ask, running[word])
            if not chosen:
                return None, text
            slots[index][word] = tuple(
                pod_devices.Grant(card.device.id, word, memory_on(card, ask), ask.cores)
                for card in by_column(chosen)
            )
            if wish.kinds[index] is not Kind.INIT:
                for card in chosen:
                    add_container(card, ask, running[word])
    return slots, ""


def add_container(card: Card, ask: Ask, running: Running) -> None:
    memory = memory_on(card, ask)
    card.slots += 1
    card.memory += memory
    card.cores += ask.cores
    running.memory += memory
    running.cores += ask.cores


# Section 8: which node.


def node_score(state: State, wish: Wish, slots: list[Slot]) -> float:
    """Score the node with the incoming pod on it; `state` is the node without it."""
    cards = [card for vendor_cards in state.values() for card in vendor_cards]
    all_slots = sum(card.device.count for card in cards)
    all_cores = sum(card.device.devcore for card in cards)
    all_memory = sum(card.device.devmem for card in cards)
    if all_slots == 0 or all_cores == 0 or all_memory == 0:
        return 0.0
    per_container = [
        (kind, [grant for grants in slot.values() for grant in grants])
        for kind, slot in zip(wish.kinds, slots, strict=True)
    ]
    s = peak((kind, len(grants)) for kind, grants in per_container)
    c = peak((kind, sum(grant.cores for grant in grants)) for kind, grants in per_container)
    m = peak((kind, sum(grant.memory for grant in grants)) for kind, grants in per_container)
    used_slots = sum(card.slots for card in cards)
    used_cores = sum(card.cores for card in cards)
    used_memory = sum(card.memory for card in cards)
    return (
        (used_slots + s) / all_slots + (used_cores + c) / all_cores + (used_memory + m) / all_memory
    ) * 10


def compared(score: float) -> int:
    return math.floor(score * 1048576 + 0.5)


def choose_node(scores: Mapping[str, float], policy: str) -> str:
    """Return the best node; equal scores: the lowest name."""
    sign = -1 if policy == "binpack" else 1
    return min(scores, key=lambda name: (sign * compared(scores[name]), name))


# Section 9: second try.


def hardest_first(wish: Wish) -> list[int]:
    """Return the containers with the app containers in the order hardest first."""

    def hardness(index: int) -> tuple[int, int, int, int]:
        return max(
            (
                (ask.percentage, ask.memory, ask.cores, ask.count)
                for ask in wish.asks[index].values()
            ),
            default=(0, 0, 0, 0),
        )

    inits = [index for index, kind in enumerate(wish.kinds) if kind is not Kind.APP]
    apps = [index for index, kind in enumerate(wish.kinds) if kind is Kind.APP]
    return inits + sorted(apps, key=hardness, reverse=True)  # reverse keeps equal ones in order


def second_try_allowed(wish: Wish) -> bool:
    pairs = zip(wish.kinds, wish.asks, strict=True)
    return sum(1 for kind, asks in pairs if kind is Kind.APP and asks) >= 2


# The whole filter.


def filter_pod(
    *,
    vendors: Sequence[RefVendor],
    nodes: list[objects.Node],
    pods: list[objects.Pod],
    quotas: list[objects.ResourceQuota],
    pod: objects.Pod,
    names: list[str],
    node_policy: str,
    gpu_policy: str,
) -> Answer:
    """Judge every node in `names` for `pod`, with `pods` already on the nodes."""
    answer = Answer()
    try:
        wish = read_wish(pod, vendors, node_policy, gpu_policy)
    except errors.WireError as error:
        answer.error = str(error)
        return answer
    if wish is None:
        answer.passed_through = True
        return answer

    others = [other for other in pods if other.uid != pod.uid and not other.finished]
    case = Case(
        wish=wish,
        vendors=vendors,
        nodes={node.name: node for node in nodes},
        pods=others,
        quotas={v.word: quota_of(v, pod.namespace, others, quotas) for v in vendors},
        traits=answer.traits,
    )
    fits = fit_nodes(case, names, answer)
    if not fits:
        return answer
    scores = {name: node_score(case.state_of(name), wish, fits[name]) for name in fits}
    winner = choose_node(scores, wish.node_policy)
    if [compared(score) for score in scores.values()].count(compared(scores[winner])) > 1:
        answer.traits.add("nodes tied")
    answer.winner = winner
    answer.score = scores[winner]
    for vendor in vendors:
        if wish.wants(vendor):
            answer.slots[vendor.word] = tuple(slot.get(vendor.word, ()) for slot in fits[winner])
    return answer


def fit_nodes(case: Case, names: list[str], answer: Answer) -> dict[str, list[Slot]]:
    """Return the slots on every node that fits; the texts of the others go into the answer."""
    fits: dict[str, list[Slot]] = {}
    passed_checks: list[str] = []
    own_order = list(range(len(case.wish.asks)))
    for name in names:
        slots = None
        text = check_node(case, case.nodes.get(name), case.state_of(name))
        if text is None:
            passed_checks.append(name)
            slots, text = fit_node(case, case.state_of(name), own_order)
        if slots is None:
            answer.failed[name] = text
        else:
            fits[name] = slots
    if passed_checks:
        case.traits.add("cards judged")

    if not fits and second_try_allowed(case.wish):
        for name in passed_checks:
            slots, _ = fit_node(case, case.state_of(name), hardest_first(case.wish))
            if slots is not None:
                case.traits.add("second try")
                fits[name] = slots
                del answer.failed[name]
    return fits
