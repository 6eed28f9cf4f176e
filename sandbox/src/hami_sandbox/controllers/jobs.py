"""Jobs: pods until enough have succeeded, or too many have failed.

Pods are counted as they are, not by finalizers: a finished pod that is deleted runs again. Not
implemented: indexed completion, pod failure policies, a time to live.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable

from hami.kube import errors
from hami.kube.events import EventRecorder
from hami_sandbox import api_objects
from hami_sandbox.api_objects import ENDED
from hami_sandbox.controllers import pod_states
from hami_sandbox.controllers.controller import Api, Object, Watches, known, path
from hami_sandbox.controllers.pod_states import OwnerController, phase
from hami_sandbox.controllers.replica_sets import PODS

JOBS = known("batch", "jobs")
UID_LABEL = "batch.kubernetes.io/controller-uid"

_BACKOFF_LIMIT = 6
_LONGEST_BACKOFF = 360.0


class _Pods:
    """The pods of a job, by their state."""

    def __init__(self, pods: list[Object]) -> None:
        self.succeeded = [pod for pod in pods if phase(pod) == "Succeeded"]
        self.failed = [pod for pod in pods if phase(pod) == "Failed"]
        self.active = [pod for pod in pods if pod_states.is_active(pod)]
        self.terminating = [
            pod for pod in pods if pod_states.is_deleting(pod) and phase(pod) not in ENDED
        ]

    @property
    def restarts(self) -> int:
        """Return how often containers of the active pods have failed."""
        return sum(
            each.get("restartCount", 0)
            for pod in self.active
            for each in (pod.get("status") or {}).get("containerStatuses") or ()
        )


class Jobs(OwnerController):
    name = "jobs"
    owner, owned = JOBS, PODS

    def __init__(
        self,
        api: Api,
        watches: Watches,
        events: EventRecorder,
        *,
        backoff: float = 10.0,
        now: Callable[[], dt.datetime] = api_objects.now,
    ) -> None:
        super().__init__(api, watches, events, now=now)
        self._backoff = backoff

    async def reconcile(self, key: str) -> None:
        job = await self._living(key)
        if job is None or _is_finished(job):
            return
        pods = _Pods(await self._owned_by(job, f"{UID_LABEL}={job['metadata']['uid']}"))
        conditions: list[Object] = []
        ended = self._end(job, pods)
        if job["spec"].get("suspend"):
            await self._stop(job, pods.active)
            conditions = [self._condition(job, "Suspended", "JobSuspended", "Job suspended")]
        elif ended is not None:
            await self._stop(job, pods.active)
            conditions = [ended]
        else:
            await self._advance(job, pods)
        await self._report(job, pods, conditions)

    def _end(self, job: Object, pods: _Pods) -> Object | None:
        """Return the condition that ends the job; None if it goes on."""
        spec = job["spec"]
        limit = spec.get("backoffLimit", _BACKOFF_LIMIT)
        if len(pods.failed) > limit or (
            spec["template"]["spec"].get("restartPolicy") == "OnFailure" and pods.restarts > limit
        ):
            message = "Job has reached the specified backoff limit"
            return self._condition(job, "Failed", "BackoffLimitExceeded", message)
        deadline = spec.get("activeDeadlineSeconds")
        started = (job.get("status") or {}).get("startTime")
        if deadline is not None and started:
            left = (api_objects.read(started) - self._now()).total_seconds() + deadline
            if left <= 0:
                message = "Job was active longer than specified deadline"
                return self._condition(job, "Failed", "DeadlineExceeded", message)
            self._look_later(job, left)
        completions = spec.get("completions")
        if completions is None:
            # A work queue: done when one pod has succeeded and the others have ended.
            done = bool(pods.succeeded) and not pods.active
        else:
            done = len(pods.succeeded) >= completions
        if not done:
            return None
        return self._condition(
            job, "Complete", "CompletionsReached", "Reached expected number of succeeded pods"
        )

    async def _advance(self, job: Object, pods: _Pods) -> None:
        """Start as many pods as are missing and may run side by side."""
        wanted: int = job["spec"].get("parallelism", 1)
        completions = job["spec"].get("completions")
        if completions is not None:
            wanted = min(wanted, completions - len(pods.succeeded))
        elif pods.succeeded:
            wanted = len(pods.active)
        missing = wanted - len(pods.active) - len(pods.terminating)
        if missing > 0:
            wait = self._wait(pods)
            if wait > 0:
                self._look_later(job, wait)
                return
        for _ in range(missing):
            pods.active.append(await self._start(job))
        surplus = sorted(pods.active, key=pod_states.dispensable_first)[: max(0, -missing)]
        await self._stop(job, surplus)
        pods.active = [pod for pod in pods.active if pod not in surplus]

    def _wait(self, pods: _Pods) -> float:
        """Return how long the last failure keeps new pods from being started."""
        if not pods.failed:
            return 0.0
        delay = min(self._backoff * 2 ** (len(pods.failed) - 1), _LONGEST_BACKOFF)
        last = max(_ended(pod) for pod in pods.failed)
        return float((last - self._now()).total_seconds() + delay)

    async def _start(self, job: Object) -> Object:
        metadata = job["metadata"]
        uid, name = metadata["uid"], metadata["name"]
        labels = {
            UID_LABEL: uid,
            "batch.kubernetes.io/job-name": name,
            "controller-uid": uid,
            "job-name": name,
        }
        body = pod_states.from_template(job["spec"]["template"], JOBS, job, labels)
        try:
            made = await self._api.create(path(PODS, metadata["namespace"]), body)
        except errors.ApiError as error:
            self._record_event(job, "Warning", "FailedCreate", f"Error creating: {error.message}")
            raise
        self._record_event(
            job, "Normal", "SuccessfulCreate", f"Created pod: {made['metadata']['name']}"
        )
        return made

    async def _stop(self, job: Object, pods: list[Object]) -> None:
        for pod in pods:
            metadata = pod["metadata"]
            where = path(PODS, metadata["namespace"], metadata["name"])
            await self._api.delete(where, uid=metadata["uid"])
            self._record_event(
                job, "Normal", "SuccessfulDelete", f"Deleted pod: {metadata['name']}"
            )

    async def _report(self, job: Object, pods: _Pods, conditions: list[Object]) -> None:
        before = job.get("status") or {}
        ended = next((each for each in conditions if each["type"] != "Suspended"), None)
        stopped = bool(conditions)
        status: Object = {
            "startTime": before.get("startTime") or api_objects.stamp(self._now()),
            "active": None if stopped else len(pods.active) or None,
            "ready": 0
            if stopped
            else sum(pod_states.ready_since(pod) is not None for pod in pods.active),
            "terminating": len(pods.terminating) + (len(pods.active) if stopped else 0),
            "succeeded": len(pods.succeeded) or None,
            "failed": len(pods.failed) + (len(pods.active) if ended and _is(ended, "Failed") else 0)
            or None,
            "uncountedTerminatedPods": {},
        }
        if conditions:
            status["conditions"] = conditions
        if ended is not None and _is(ended, "Complete"):
            status["completionTime"] = ended["lastTransitionTime"]
        if await self._write_status(job, status) and ended is not None:
            kind = "Normal" if _is(ended, "Complete") else "Warning"
            reason = "Completed" if _is(ended, "Complete") else ended["reason"]
            message = "Job completed" if _is(ended, "Complete") else ended["message"]
            self._record_event(job, kind, reason, message)

    def _condition(self, job: Object, kind: str, reason: str, message: str) -> Object:
        for condition in (job.get("status") or {}).get("conditions") or ():
            if _is(condition, kind):
                return dict(condition)
        now = api_objects.stamp(self._now())
        return {
            "type": kind,
            "status": "True",
            "reason": reason,
            "message": message,
            "lastProbeTime": now,
            "lastTransitionTime": now,
        }


def _is(condition: Object, kind: str) -> bool:
    return bool(condition["type"] == kind and condition["status"] == "True")


def _is_finished(job: Object) -> bool:
    conditions = (job.get("status") or {}).get("conditions") or ()
    return any(_is(each, "Complete") or _is(each, "Failed") for each in conditions)


def _ended(pod: Object) -> dt.datetime:
    """Return when the last container of a failed pod ended; if unknown, its creation time."""
    times = [
        (each.get("state") or {}).get("terminated", {}).get("finishedAt")
        for each in (pod.get("status") or {}).get("containerStatuses") or ()
    ]
    ended = [api_objects.read(each) for each in times if each]
    return max(ended, default=api_objects.read(pod["metadata"]["creationTimestamp"]))
