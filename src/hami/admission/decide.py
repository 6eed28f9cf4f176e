"""Decide about a new pod: `decide(pod, context) -> AdmissionResult`, without I/O.

In this order: refuse a pod that claims to be placed already; pass mirror pods and pods of other
schedulers; replace missing MIG profiles; complete requests for cards and read them strictly; refuse
what would evade them, and what the namespace's quota does not allow; name our scheduler. The result
holds the pod as it should be. Deciding about that pod again changes nothing.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from hami.admission import checks, edits, mig_fallback
from hami.admission.errors import Refusal, invalid
from hami.admission.mig_fallback import Step
from hami.admission.settings import Context, Rules
from hami.placement import request
from hami.placement.request import PodRequest
from hami.vendors.table import Vendor
from hami.wire import annotation_keys, errors, objects
from hami.wire.objects import Container, ContainerKind, Pod

DEFAULT_SCHEDULER = "default-scheduler"
_OTHER_SCHEDULER = "pod already has different scheduler assigned"


class AdmissionResult(msgspec.Struct, frozen=True, kw_only=True):
    """Whether a pod may be created, how it changes, and the messages to its owner."""

    allowed: bool = True
    #: HTTP status and reason of a refusal.
    code: int = 200
    reason: str = ""
    message: str = ""
    #: The pod as it should be; None: as it came.
    pod: Pod | None = None
    #: For the owner of a pod that is allowed.
    warnings: tuple[str, ...] = ()
    #: MIG profiles that were replaced.
    steps: tuple[Step, ...] = ()


def decide(pod: Pod, context: Context, *, trace: str = "", trace_key: str = "") -> AdmissionResult:
    """Decide about a pod that is to be created; its namespace must be filled in.

    `trace` is written under `trace_key` on pods with cards; scheduler and agent continue it.
    """
    try:
        return _decide(pod, context, (trace_key, trace))
    except Refusal as refusal:
        return AdmissionResult(
            allowed=False, code=refusal.code, reason=refusal.reason, message=refusal.message
        )


def _decide(pod: Pod, context: Context, trace: tuple[str, str]) -> AdmissionResult:
    rules = context.rules
    if rules.scheduler_name:
        # Before mirror pods pass: any user may write their mark, and kubelet's carry no grant.
        checks.no_forged_grant(pod, rules.vendors)
    if annotation_keys.MIRROR in pod.annotations and pod.node_name:
        return AdmissionResult(message="mirror pod: what kubelet runs already is not changed")
    if pod.spec is None or not pod.spec.containers:
        raise Refusal("pod has no containers: add at least one to spec.containers")
    if not rules.scheduler_name:
        return _allowed(*_with_profiles(pod, context))
    if _is_for_another(pod, rules):
        return AdmissionResult(message=_OTHER_SCHEDULER)
    pod, steps = _with_profiles(pod, context)
    pod, demand = _completed(pod, rules)
    if demand is None:
        return _allowed(pod, steps)
    checks.not_privileged(pod)
    checks.no_cards_listed(pod)
    checks.no_node_named(pod)
    _check_shares(pod, demand, rules)
    _check_quota(demand, context)
    pod = edits.scheduler(pod, rules.scheduler_name)
    runtime_class = rules.nvidia.runtime_class_name
    if runtime_class and not (pod.spec and pod.spec.runtime_class_name):
        pod = edits.runtime_class(pod, runtime_class)
    key, value = trace
    if value and not pod.annotation(key):
        pod = edits.annotation(pod, key, value)
    return _allowed(pod, steps)


def _allowed(pod: Pod, steps: tuple[Step, ...]) -> AdmissionResult:
    return AdmissionResult(pod=pod, warnings=tuple(_warning(step) for step in steps), steps=steps)


def _warning(step: Step) -> str:
    to = "a GPU" if step.to == mig_fallback.GPU else f"nvidia.com/mig-{step.to}"
    return (
        f"container {step.container}: no node of this cluster can give it nvidia.com/mig-"
        f"{step.origin}, it will get {to} instead"
    )


def _is_for_another(pod: Pod, rules: Rules) -> bool:
    named = (pod.spec and pod.spec.scheduler_name) or ""
    if named in ("", rules.scheduler_name):
        return False
    return not (named == DEFAULT_SCHEDULER and rules.force_overwrite_default_scheduler)


def _with_profiles(pod: Pod, context: Context) -> tuple[Pod, tuple[Step, ...]]:
    """Return the pod with MIG profiles that the cluster has, and what was replaced."""
    plan = context.rules.fallback
    return (pod, ()) if plan is None else mig_fallback.move(pod, plan, context.mig_offer)


def _completed(pod: Pod, rules: Rules) -> tuple[Pod, PodRequest | None]:
    """Return the pod with complete requests, and what it asks for; None: no cards."""

    def edit(_: ContainerKind, container: Container) -> Container:
        for vendor in rules.vendors:
            container = edits.completed(container, vendor)
            if edits.wants(container, vendor):
                container = edits.with_variables(container, vendor, rules.nvidia)
            elif rules.nvidia.overwrite_env and vendor.section == "nvidia":
                container = edits.hidden(container, vendor)
        return container

    try:
        completed = edits.containers(pod, edit)
        return completed, request.parse(completed, rules.vendors, rules.defaults)
    except errors.WireError as error:
        raise invalid(str(error)) from error


def _check_shares(pod: Pod, demand: PodRequest, rules: Rules) -> None:
    priorities: Mapping[str, str] = {v.name: v.resources.priority for v in rules.vendors}
    for (_, container), asked in zip(pod.containers(), demand.containers, strict=True):
        for each in asked.cards:
            checks.priority_is_allowed(pod, container, priorities[each.vendor], rules)
    if all(each.whole for _, each in demand.requests()):
        return
    with_cards = frozenset(asked.name for asked in demand.containers if asked.cards)
    checks.nothing_replaces_the_limits(pod, rules, with_cards=with_cards)


def _check_quota(demand: PodRequest, context: Context) -> None:
    by_word: Mapping[str, Vendor] = {vendor.name: vendor for vendor in context.rules.vendors}
    for word, total in demand.totals().items():
        vendor = by_word[word]
        left = context.headroom(demand.namespace, vendor)
        if left.allows(memory=total.memory, cores=total.cores):
            continue
        exceeded = [
            f"{asked} {unit} ({name}) where {max(may, 0)} {unit} are left"
            for asked, may, unit, name in (
                (total.memory, left.memory, "MiB", vendor.resources.memory),
                (total.cores, left.cores, "%", vendor.resources.cores),
            )
            if may is not None and 0 < asked > may
        ]
        raise Refusal(
            f"exceeding resource quota: namespace {demand.namespace} asks for "
            f"{' and '.join(exceeded)}; ask for less, delete a pod, or raise the ResourceQuota"
        )


def namespaced(pod: Pod, namespace: str) -> Pod:
    """Return the pod with the namespace of the review, if it names none itself."""
    if pod.namespace or not namespace:
        return pod
    metadata = pod.metadata or objects.Metadata()
    return msgspec.structs.replace(
        pod, metadata=msgspec.structs.replace(metadata, namespace=namespace)
    )
