"""Bindings and evictions of pods.

A Binding sets node, annotations, labels and the condition in one write. An Eviction is a deletion
that a disruption budget may refuse for the moment.
"""

from __future__ import annotations

import msgspec

from hami_sandbox import api_objects
from hami_sandbox.api_objects import ENDED, matches
from hami_sandbox.apiserver import deletion, kinds
from hami_sandbox.apiserver.call import Call, body_of_kind, plain_body
from hami_sandbox.apiserver.kinds import Kind
from hami_sandbox.apiserver.refusals import (
    Object,
    Refusal,
    bad_request,
    conflict,
    invalid,
    not_found,
)
from hami_sandbox.apiserver.store import Store
from hami_sandbox.apiserver.table import Stored
from hami_sandbox.apiserver.writes import Writes, copied, place

_PODS = ("", "pods")
_REQUIRED = "FieldValueRequired"


async def bind(writes: Writes, call: Call) -> None:
    """Bind a pod by the Binding in the body; the path names the pod, or its namespace."""
    kind = _kind("Binding")
    binding = body_of_kind(call, kind)
    metadata = binding["metadata"]
    pod = call.name or metadata.get("name") or ""
    if metadata.get("name") != pod:
        given = metadata.get("name") or ""
        raise bad_request(
            f"the name of the object ({given}) does not match the name on the URL ({pod})"
        )
    place(call, metadata)
    writes_pod = call.kind if call.subresource else kind
    request = call.review(
        "CREATE",
        kind=writes_pod,
        name=pod,
        object=binding,
        options=call.options("CreateOptions"),
        dry_run=call.dry_run(),
    )
    mutated = await writes.admission.mutate(request)
    assert mutated is not None
    binding = request.object = mutated
    _check(binding)
    await writes.admission.validate(request)
    # No await from here on: no other request can write in between.
    current = writes.store.table(_PODS).get(call.namespace, pod)
    if current is None:
        raise not_found("pods", pod)
    content = _bound(current, binding, pod)
    if not request.dry_run:
        writes.store.put(_PODS, content, over=current.revision)


def _check(binding: Object) -> None:
    target = binding.get("target") or {}
    causes = []
    if target.get("kind") not in {None, "", "Node"}:
        message = f'Unsupported value: "{target["kind"]}": supported values: "Node", "<empty>"'
        causes.append(("target.kind", "FieldValueNotSupported", message))
    if not target.get("name"):
        causes.append(("target.name", _REQUIRED, "Required value"))
    if causes:
        listed = [{"field": f, "reason": r, "message": m} for f, r, m in causes]
        raise invalid("Binding", binding["metadata"].get("name") or "", listed)


def _bound(current: Stored, binding: Object, pod: str) -> Object:
    """Return the pod on its node; refuse one that cannot be put there."""
    wanted, found = binding["metadata"], current.object["metadata"]
    if wanted.get("uid") and wanted["uid"] != found["uid"]:
        why = (
            f"Precondition failed: UID in precondition: {wanted['uid']}, UID in object meta: "
            f"{found['uid']}"
        )
        raise conflict("pods", pod, why)
    version = wanted.get("resourceVersion")
    if version and version != found["resourceVersion"]:
        why = (
            f"Precondition failed: ResourceVersion in precondition: {version}, ResourceVersion in "
            f"object meta: {found['resourceVersion']}"
        )
        raise conflict("pods", pod, why)
    content = copied(current.object)
    spec, metadata = content["spec"], content["metadata"]
    if "deletionTimestamp" in metadata:
        raise _refused(pod, f"pod {pod} is being deleted, cannot be assigned to a host")
    if spec.get("nodeName"):
        raise _refused(pod, f'pod {pod} is already assigned to node "{spec["nodeName"]}"')
    if spec.get("schedulingGates"):
        raise _refused(pod, f"pod {pod} has non-empty .spec.schedulingGates")
    spec["nodeName"] = binding["target"]["name"]
    for field in ("annotations", "labels"):
        if wanted.get(field):
            metadata[field] = {**(metadata.get(field) or {}), **wanted[field]}
    _set_scheduled(content)
    return content


def _set_scheduled(pod: Object) -> None:
    status = pod.setdefault("status", {})
    conditions = [c for c in status.get("conditions") or () if c.get("type") != "PodScheduled"]
    scheduled: Object = {
        "type": "PodScheduled",
        "status": "True",
        "lastTransitionTime": api_objects.stamp(api_objects.now()),
    }
    if "generation" in pod["metadata"]:
        scheduled["observedGeneration"] = pod["metadata"]["generation"]
    status["conditions"] = [*conditions, scheduled]


def _refused(pod: str, why: str) -> Refusal:
    return conflict("pods/binding", pod, why)


def _kind(name: str) -> Kind:
    kind = kinds.of("v1", name)
    assert kind is not None
    return kind


_RETRY_AFTER = 10


async def evict(writes: Writes, call: Call) -> None:
    """Delete a pod by the Eviction in the body, if every budget allows it."""
    eviction = plain_body(call)
    options = eviction.get("deleteOptions") or {}
    if eviction.get("dryRun"):
        options = {**options, "dryRun": eviction["dryRun"]}
    pod = writes.current(call).object
    if pod.get("status", {}).get("phase") not in ENDED:
        _check_budgets(writes.store, call, pod)
    target = msgspec.structs.replace(call.target, subresource="")
    await deletion.delete(writes, msgspec.structs.replace(call, target=target), options)


def _check_budgets(store: Store, call: Call, pod: Object) -> None:
    labels = pod["metadata"].get("labels") or {}
    for budget in store.all("policy", "poddisruptionbudgets", call.namespace):
        selector = budget.get("spec", {}).get("selector")
        if selector is None or not matches(selector, labels):
            continue
        allowed = budget.get("status", {}).get("disruptionsAllowed", 0)
        if allowed <= 0:
            name = budget["metadata"]["name"]
            cause = {
                "reason": "DisruptionBudget",
                "message": f"The disruption budget {name} allows no further disruption now",
            }
            details = {"causes": [cause], "retryAfterSeconds": _RETRY_AFTER}
            message = "Cannot evict pod as it would violate the pod's disruption budget."
            raise Refusal(429, "TooManyRequests", message, details)
