"""Eviction: a deletion that a disruption budget may refuse for the moment."""

from __future__ import annotations

import msgspec

from hami_sandbox.apiserver import bodies, deletion
from hami_sandbox.apiserver.call import Call
from hami_sandbox.apiserver.refusals import Object, Refusal
from hami_sandbox.apiserver.store import Store
from hami_sandbox.apiserver.writes import Writes
from hami_sandbox.label_selectors import matches
from hami_sandbox.pod_phases import ENDED

_RETRY_AFTER = 10


async def evict(writes: Writes, call: Call) -> None:
    """Delete the pod as the Eviction in the body wants it, if no budget is against it."""
    eviction = bodies.plain(call)
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
