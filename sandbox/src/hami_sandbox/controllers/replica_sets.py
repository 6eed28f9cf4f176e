"""Replica sets: keep the requested number of pods."""

from __future__ import annotations

import datetime as dt

from hami.kube import errors
from hami_sandbox import api_objects
from hami_sandbox.controllers import pod_states
from hami_sandbox.controllers.controller import Object, known, path
from hami_sandbox.controllers.pod_states import OwnerController

SETS = known("apps", "replicasets")
PODS = known("", "pods")


class ReplicaSets(OwnerController):
    name = "replica sets"
    owner, owned = SETS, PODS

    async def reconcile(self, key: str) -> None:
        found = await self._living(key)
        if found is None:
            return
        query = api_objects.as_query(found["spec"]["selector"])
        pods = [pod for pod in await self._owned_by(found, query) if pod_states.is_active(pod)]
        refusal: errors.ApiError | None = None
        try:
            pods = await self._adjust(found, pods)
        except (errors.Invalid, errors.Forbidden, errors.ServerFault) as error:
            refusal = error
            self._record_event(found, "Warning", "FailedCreate", f"Error creating: {error.message}")
        await self._report(found, pods, refusal)
        if refusal is not None:
            raise refusal

    async def _adjust(self, owner: Object, pods: list[Object]) -> list[Object]:
        """Create pods, or delete some; return those that are left."""
        namespace = owner["metadata"]["namespace"]
        wanted: int = owner["spec"].get("replicas", 1)
        pods = sorted(pods, key=pod_states.dispensable_first)
        while len(pods) < wanted:
            body = pod_states.from_template(owner["spec"]["template"], SETS, owner)
            made = await self._api.create(path(PODS, namespace), body)
            self._record_event(
                owner, "Normal", "SuccessfulCreate", f"Created pod: {made['metadata']['name']}"
            )
            pods.append(made)
        while len(pods) > wanted:
            deleted = pods.pop(0)["metadata"]
            await self._api.delete(path(PODS, namespace, deleted["name"]), uid=deleted["uid"])
            self._record_event(
                owner, "Normal", "SuccessfulDelete", f"Deleted pod: {deleted['name']}"
            )
        return pods

    async def _report(
        self, owner: Object, pods: list[Object], refusal: errors.ApiError | None
    ) -> None:
        seconds = owner["spec"].get("minReadySeconds", 0)
        labels = (owner["spec"]["template"].get("metadata") or {}).get("labels") or {}
        now = self._now()
        ready = [pod for pod in pods if pod_states.ready_since(pod) is not None]
        available = [pod for pod in ready if pod_states.is_available(pod, seconds=seconds, now=now)]
        counts = {
            "replicas": len(pods),
            "fullyLabeledReplicas": sum(
                labels.items() <= (pod["metadata"].get("labels") or {}).items() for pod in pods
            ),
            "readyReplicas": len(ready),
            "availableReplicas": len(available),
        }
        status: Object = {
            # A count of 0 is left out, as in kube-controller-manager.
            **{key: value or None for key, value in counts.items()},
            "replicas": len(pods),
            "observedGeneration": owner["metadata"].get("generation"),
            "conditions": _conditions(owner.get("status") or {}, refusal, now),
        }
        await self._write_status(owner, status)
        if len(available) < len(ready):
            self._look_later(owner, seconds)


def _conditions(
    before: Object, refusal: errors.ApiError | None, now: dt.datetime
) -> list[Object] | None:
    if refusal is None:
        return None
    for condition in before.get("conditions") or ():
        if condition.get("message") == refusal.message:
            return [condition]
    return [
        {
            "type": "ReplicaFailure",
            "status": "True",
            "reason": "FailedCreate",
            "message": refusal.message,
            "lastTransitionTime": api_objects.stamp(now),
        }
    ]
