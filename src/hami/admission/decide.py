"""What happens to a pod at the door: `decide(pod, facts) -> Decision`, without I/O.

In this order: what pretends to be placed already is refused; what is no business of ours passes,
and so do pods of other schedulers; missing MIG profiles are replaced; requests for cards are
completed and read strictly; then what would evade them is refused, and what the namespace may not
have. The result is the pod as it should be, and the patch that makes it so. Deciding a patched pod
again changes nothing.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from hami.admission import checks, edits, json_patch, mig_fallback
from hami.admission.errors import Refusal, invalid
from hami.admission.mig_fallback import Step
from hami.admission.rules import Facts, Rules
from hami.placement import request
from hami.placement.request import PodRequest
from hami.vendors.table import Vendor
from hami.wire import annotation_keys, errors, objects
from hami.wire.objects import Container, ContainerKind, Pod

DEFAULT_SCHEDULER = "default-scheduler"
_OTHER_SCHEDULER = "pod already has different scheduler assigned"


class AdmissionResult(msgspec.Struct, frozen=True, kw_only=True):
    allowed: bool = True
    #: As in an HTTP answer.
    code: int = 200
    reason: str = ""
    message: str = ""
    #: JSON Patch.
    patch: tuple[Mapping[str, object], ...] = ()
    #: For the user, though the pod is allowed.
    warnings: tuple[str, ...] = ()
    steps: tuple[Step, ...] = ()


def decide(pod: Pod, facts: Facts, *, trace: str = "", trace_key: str = "") -> AdmissionResult:
    """Decide about a pod that is to be created; its namespace must be filled in.

    `trace` is written under `trace_key` on pods with cards, so that their way can be followed.
    """
    try:
        return _decide(pod, facts, (trace_key, trace))
    except Refusal as refusal:
        return AdmissionResult(
            allowed=False, code=refusal.code, reason=refusal.reason, message=refusal.message
        )


def _decide(pod: Pod, facts: Facts, trace: tuple[str, str]) -> AdmissionResult:
    rules = facts.rules
    if rules.scheduler_name:
        # Anyone may write the mark of a mirror pod; kubelet's own never carry a grant.
        checks.no_forged_grant(pod, rules.vendors)
    if annotation_keys.MIRROR in pod.annotations and pod.node_name:
        return AdmissionResult(message="mirror pod: what kubelet runs already is not changed")
    if pod.spec is None or not pod.spec.containers:
        raise Refusal("pod has no containers: add at least one to spec.containers")
    if not rules.scheduler_name:
        moved, steps = _moved(pod, facts)
        return _allowed(pod, moved, steps)
    if _is_for_another(pod, rules):
        return AdmissionResult(message=_OTHER_SCHEDULER)
    moved, steps = _moved(pod, facts)
    completed, demand = _completed(moved, rules)
    if demand is None:
        return _allowed(pod, completed, steps)
    checks.not_privileged(completed)
    checks.no_node_named(completed)
    _check_shares(completed, demand, rules)
    _check_quota(demand, facts)
    taken = edits.scheduler(completed, rules.scheduler_name)
    runtime_class = rules.nvidia.runtime_class_name
    if runtime_class and not pod.spec.runtime_class_name:
        taken = edits.runtime_class(taken, runtime_class)
    key, value = trace
    if value and not taken.annotation(key):
        taken = edits.annotation(taken, key, value)
    return _allowed(pod, taken, steps)


def _allowed(before: Pod, after: Pod, steps: tuple[Step, ...]) -> AdmissionResult:
    return AdmissionResult(
        patch=json_patch.between(before, after),
        warnings=tuple(_told(step) for step in steps),
        steps=steps,
    )


def _told(step: Step) -> str:
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


def _moved(pod: Pod, facts: Facts) -> tuple[Pod, tuple[Step, ...]]:
    plan = facts.rules.fallback
    return (pod, ()) if plan is None else mig_fallback.move(pod, plan, facts.inventory)


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


def _check_quota(demand: PodRequest, facts: Facts) -> None:
    by_word: Mapping[str, Vendor] = {vendor.name: vendor for vendor in facts.rules.vendors}
    for word, total in demand.totals().items():
        vendor = by_word[word]
        left = facts.headroom(demand.namespace, vendor)
        if left.allows(memory=total.memory, cores=total.cores):
            continue
        over = [
            f"{asked} {unit} ({name}) where {max(may, 0)} {unit} are left"
            for asked, may, unit, name in (
                (total.memory, left.memory, "MiB", vendor.resources.memory),
                (total.cores, left.cores, "%", vendor.resources.cores),
            )
            if may is not None and 0 < asked > may
        ]
        raise Refusal(
            f"exceeding resource quota: namespace {demand.namespace} asks for "
            f"{' and '.join(over)}; ask for less, delete a pod, or raise the ResourceQuota"
        )


def namespaced(pod: Pod, namespace: str) -> Pod:
    """Return the pod with the namespace of the request, where it names none itself."""
    if pod.namespace or not namespace:
        return pod
    metadata = pod.metadata or objects.Metadata()
    return msgspec.structs.replace(
        pod, metadata=msgspec.structs.replace(metadata, namespace=namespace)
    )
