"""The whole filter of docs/placement.md, slow and obvious: the oracle.

One function (or a few) per section of that page, with its words; plain loops over plain numbers,
everything recomputed from the API objects for every pod. It imports only `hami.wire`, so that an
error of the card table, the cluster's state or the placement cannot repeat here. This module fits
whole pods and chooses the node (sections 8 and 9); it builds on:

    reference_vendor    what is known of a vendor
    reference_admission what admission adds to a pod before
    reference_request   section 1, what a pod asks for
    reference_holdings  sections 2 and 7, what a node has and a pod holds
    reference_quota     section 6
    reference_checks    sections 3 and 4, node and card checks
    reference_order     section 5, which cards

Change the page first, then the reference and the product, each read from the page alone.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence

from hami.wire import errors, objects
from hami.wire.shares import PodShares, Share
from tests.oracle.reference_admission import admit
from tests.oracle.reference_cards import Card, State
from tests.oracle.reference_checks import Case, check_node
from tests.oracle.reference_holdings import by_node, peak
from tests.oracle.reference_order import by_column, choose
from tests.oracle.reference_quota import Running, quota_of
from tests.oracle.reference_request import Kind, Request, read_request
from tests.oracle.reference_unproven import is_unproven
from tests.oracle.reference_vendor import Grant, RefVendor, Take, take_of

__all__ = ["Answer", "RefVendor", "filter_pod"]


@dataclasses.dataclass(kw_only=True)
class Answer:
    """What the filter says of a pod."""

    #: Why the request is refused as such.
    error: str | None = None
    #: No container asks for a card: the pod is not ours.
    passed_through: bool = False
    winner: str | None = None
    score: float | None = None
    #: By vendor name, for the requested vendors: the winner's shares, one tuple per container.
    shares: dict[str, PodShares] = dataclasses.field(default_factory=dict)
    #: What a Binding to the winner writes for the vendors' plugins.
    annotations: dict[str, str] = dataclasses.field(default_factory=dict)
    #: The containers as admission leaves them, if the scenario begins there.
    admitted: list[objects.Container] = dataclasses.field(default_factory=list)
    #: Every refused node among those asked about.
    failed: dict[str, str] = dataclasses.field(default_factory=dict)
    #: What this case exercised, for the counts of the agreement test.
    traits: set[str] = dataclasses.field(default_factory=set, compare=False)


# Section 4, its frame: the containers one after the other, on a copy of what the node is.

Given = dict[str, tuple[Share, ...]]
"""What one container is given, by vendor name."""


def fit_node(case: Case, node: State, order: list[int]) -> tuple[list[Given] | None, str]:
    """Fit the containers in `order`; return the shares in container order, or the node's text."""
    wanted = case.wanted
    state = {name: [dataclasses.replace(card) for card in cards] for name, cards in node.items()}
    given: list[Given] = [{} for _ in wanted.asks]
    running = {vendor.name: Running() for vendor in case.vendors}
    for index in order:
        for vendor in case.vendors:
            name = vendor.name
            ask = wanted.asks[index].get(name)
            if ask is None:
                continue
            chosen, text = choose(case, vendor, state[name], ask, running[name])
            if not chosen:
                return None, text
            takes = [(card, take_of(vendor, card.device, ask)) for card in by_column(chosen)]
            given[index][name] = tuple(share_of(vendor, card, take) for card, take in takes)
            if wanted.kinds[index] is not Kind.INIT:
                for card, take in takes:
                    add_container(card, take, running[name])
    return given, ""


def share_of(vendor: RefVendor, card: Card, take: Take) -> Share:
    word = vendor.word or vendor.name
    if vendor.word_of is not None:
        word = vendor.word_of(card.device)
    return Share(card.device.id, word, take.memory, take.cores, take.shares)


def add_container(card: Card, take: Take, running: Running) -> None:
    card.shares += take.shares
    card.memory += take.memory
    card.cores += take.cores
    running.memory += take.memory
    running.cores += take.cores


# The annotations that record the choice.


def annotations_of(vendor: RefVendor, grant: Grant) -> dict[str, str]:
    """Write the list, a part for each container; most vendors have it under two keys."""
    parts = (
        "".join(f"{s.card},{s.vendor},{s.memory_mib},{s.cores}:" for s in each) + ";"
        for each in grant.shares
    )
    listed = "".join(parts)
    written = {key: listed for key in (vendor.to_allocate, vendor.allocated) if key}
    return written | (vendor.record(grant) if vendor.record is not None else {})


# Section 8: which node.


def node_score(state: State, wanted: Request, given: list[Given]) -> float:
    """Score the node with the incoming pod on it; `state` is the node without it."""
    cards = [card for vendor_cards in state.values() for card in vendor_cards]
    all_shares = sum(card.device.count for card in cards)
    all_cores = sum(card.device.devcore for card in cards)
    all_memory = sum(card.device.devmem for card in cards)
    if all_shares == 0 or all_cores == 0 or all_memory == 0:
        return 0.0
    per_container = [
        (kind, [grant for grants in each.values() for grant in grants])
        for kind, each in zip(wanted.kinds, given, strict=True)
    ]
    s = peak((kind, sum(grant.slots for grant in grants)) for kind, grants in per_container)
    c = peak((kind, sum(grant.cores for grant in grants)) for kind, grants in per_container)
    m = peak((kind, sum(grant.memory_mib for grant in grants)) for kind, grants in per_container)
    used_shares = sum(card.shares for card in cards)
    used_cores = sum(card.cores for card in cards)
    used_memory = sum(card.memory for card in cards)
    return (
        (used_shares + s) / all_shares
        + (used_cores + c) / all_cores
        + (used_memory + m) / all_memory
    ) * 10


def compared(score: float) -> int:
    return min(math.floor(score * 1048576 + 0.5), 2**40)


def choose_node(scores: Mapping[str, float], policy: str) -> str:
    """Return the best node; equal scores: the lowest name."""
    sign = -1 if policy == "binpack" else 1
    return min(scores, key=lambda name: (sign * compared(scores[name]), name))


# Section 9: second try.


def hardest_first(wanted: Request) -> list[int]:
    """Return the containers with the app containers in the order hardest first."""

    def hardness(index: int) -> tuple[int, int, int, int]:
        return max(
            (
                (ask.percentage, ask.memory, ask.cores, ask.count)
                for ask in wanted.asks[index].values()
            ),
            default=(0, 0, 0, 0),
        )

    inits = [index for index, kind in enumerate(wanted.kinds) if kind is not Kind.APP]
    apps = [index for index, kind in enumerate(wanted.kinds) if kind is Kind.APP]
    return inits + sorted(apps, key=hardness, reverse=True)  # reverse keeps equal ones in order


def second_try_allowed(wanted: Request) -> bool:
    pairs = zip(wanted.kinds, wanted.asks, strict=True)
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
    admits: bool = False,
) -> Answer:
    """Judge every node in `names` for `pod`, with `pods` already on the nodes.

    With `admits` admission completes the pod first, as the rules of the vendors say.
    """
    answer = Answer()
    try:
        if admits:
            pod = admit(pod, vendors, nodes)
        wanted = read_request(pod, vendors, node_policy, gpu_policy)
    except errors.WireError as error:
        answer.error = str(error)
        return answer
    if wanted is None:
        answer.passed_through = True
        return answer
    if admits:
        answer.admitted = [container for _, container in pod.containers()]

    others = [other for other in pods if other.uid != pod.uid and not other.finished]
    case = Case(
        wanted=wanted,
        vendors=vendors,
        nodes={node.name: node for node in nodes},
        pods_on=by_node(others),
        quotas={v.name: quota_of(v, pod.namespace, others, quotas) for v in vendors},
        traits=answer.traits,
    )
    states = {name: case.state_of(name) for name in names}
    fits = fit_nodes(case, states, answer)
    if not fits:
        return answer
    scores = {name: node_score(states[name], wanted, fits[name]) for name in fits}
    winner = choose_node(scores, wanted.node_policy)
    if [compared(score) for score in scores.values()].count(compared(scores[winner])) > 1:
        answer.traits.add("nodes tied")
    answer.winner = winner
    answer.score = scores[winner]
    for vendor in vendors:
        if wanted.wants(vendor):
            given = tuple(each.get(vendor.name, ()) for each in fits[winner])
            cards = {card.device.id: card.device for card in states[winner][vendor.name]}
            grant = Grant(containers=names_of(pod), shares=given, cards=cards)
            answer.shares[vendor.name] = given
            answer.annotations |= annotations_of(vendor, grant)
    return answer


def names_of(pod: objects.Pod) -> list[str]:
    return [container.name or "" for _, container in pod.containers()]


def has_unproven_pods(case: Case, node: str) -> bool:
    pods = case.pods_on.get(node, [])
    return any(is_unproven(pod, vendor) for pod in pods for vendor in case.vendors)


def fit_nodes(case: Case, states: Mapping[str, State], answer: Answer) -> dict[str, list[Given]]:
    """Return the shares on every node that fits; the texts of the others go into the answer."""
    fits: dict[str, list[Given]] = {}
    passed_checks: list[str] = []
    own_order = list(range(len(case.wanted.asks)))
    for name, state in states.items():
        given = None
        text = check_node(case, case.nodes.get(name), state)
        if text is None:
            passed_checks.append(name)
            given, text = fit_node(case, state, own_order)
        if given is None:
            answer.failed[name] = text
        else:
            fits[name] = given
    if passed_checks:
        case.traits.add("cards judged")
    if any(has_unproven_pods(case, name) for name in passed_checks):
        case.traits.add("pod without a valid grant")

    if not fits and second_try_allowed(case.wanted):
        for name in passed_checks:
            given, _ = fit_node(case, states[name], hardest_first(case.wanted))
            if given is not None:
                case.traits.add("second try")
                fits[name] = given
                del answer.failed[name]
    return fits
