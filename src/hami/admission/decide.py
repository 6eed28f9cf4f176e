"""Decide about a new pod: `decide(pod, context) -> AdmissionResult`, without I/O.

In this order: remove the grant of another pod; pass mirror pods and pods of other schedulers;
replace missing MIG profiles; complete requests for cards and read them strictly; refuse what would
evade them, and what the namespace's quota does not allow; hide cards from containers without any;
name our scheduler. The result holds the pod as it should be. Deciding about that pod again changes
nothing.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from hami.admission import checks, edits, leftovers, mig_fallback
from hami.admission.errors import Refusal, invalid
from hami.admission.mig_fallback import Step
from hami.admission.settings import Context, Rules
from hami.placement import request
from hami.placement.request import PodRequest
from hami.vendors import table
from hami.vendors.families import Families
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
    original = pod
    warnings: leftovers.Warnings = ()
    if rules.scheduler_name:
        # Before mirror pods pass: any user may write their mark, and kubelet's carry no grant.
        pod, warnings = leftovers.without_grant(pod, rules.vendors)
    if annotation_keys.MIRROR in pod.annotations and pod.node_name:
        message = "mirror pod: what kubelet runs already is not changed"
        return AdmissionResult(pod=pod, warnings=warnings, message=message)
    if pod.spec is None or not pod.spec.containers:
        raise Refusal("pod has no containers: add at least one to spec.containers")
    if not rules.scheduler_name:
        return _allowed(*_with_profiles(pod, context))
    if _is_for_another(pod, rules):
        return AdmissionResult(pod=pod, warnings=warnings, message=_OTHER_SCHEDULER)
    pod, steps = _with_profiles(pod, context)
    families = Families(rules.vendors)
    pod, demand = _completed(pod, families, context)
    if demand is None:
        if _is_claimed(pod, families):
            pod = edits.scheduler(pod, rules.scheduler_name)
        return _allowed(pod, steps, warnings)
    pod, of_node = leftovers.without_copied_node(pod, original=original)
    checks.not_privileged(pod, demand)
    checks.no_node_named(pod)
    _check_shares(pod, demand, rules)
    _check_quota(demand, context)
    pod, of_containers = leftovers.only_own_cards(pod, demand, rules)
    pod = edits.scheduler(pod, rules.scheduler_name)
    runtime_class = rules.nvidia.runtime_class_name
    with_nvidia = table.nvidia(rules.vendors).name in demand.selectors
    if with_nvidia and runtime_class and not (pod.spec and pod.spec.runtime_class_name):
        pod = edits.runtime_class(pod, runtime_class)
    key, value = trace
    if value and not pod.annotation(key):
        pod = edits.annotation(pod, key, value)
    return _allowed(pod, steps, (*warnings, *of_node, *of_containers))


def _allowed(pod: Pod, steps: tuple[Step, ...], warnings: tuple[str, ...] = ()) -> AdmissionResult:
    replaced = tuple(_warning(step) for step in steps)
    return AdmissionResult(pod=pod, warnings=(*warnings, *replaced), steps=steps)


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


def _completed(pod: Pod, families: Families, context: Context) -> tuple[Pod, PodRequest | None]:
    """Return the pod with complete requests, and what it asks for; None: no cards."""
    rules = context.rules
    nvidia = table.nvidia(rules.vendors)

    def edit(_: ContainerKind, container: Container) -> Container:
        for family in families.of_container(container):
            container = family.complete(container, context)
        if edits.wants(container, nvidia):
            container = edits.with_variables(container, nvidia, rules.nvidia)
        elif rules.nvidia.overwrite_env:
            container = edits.hidden(container, nvidia)
        return container

    try:
        completed = edits.containers(pod, edit)
        return completed, request.parse(completed, families, rules.defaults)
    except errors.WireError as error:
        raise invalid(str(error)) from error


def _is_claimed(pod: Pod, families: Families) -> bool:
    """Tell whether a vendor wants a pod that asks for no card to be scheduled by us."""
    return any(
        family.claims(container)
        for _, container in pod.containers()
        for family in families.of_container(container)
    )


def _check_shares(pod: Pod, demand: PodRequest, rules: Rules) -> None:
    nvidia = table.nvidia(rules.vendors)
    for (_, container), asked in zip(pod.containers(), demand.containers, strict=True):
        if any(each.vendor == nvidia.name for each in asked.cards):
            checks.priority_is_allowed(pod, container, nvidia.resources.priority, rules)
    shares = not all(each.whole for _, each in demand.requests() if each.vendor == nvidia.name)
    checks.mounts_are_allowed(pod, rules, shares=shares)


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
