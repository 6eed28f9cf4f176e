"""The status of a pod as kubelet writes it: phase, conditions, states of all containers. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from hami_sandbox import times
from hami_sandbox.kubelet import container_status, decisions, phases
from hami_sandbox.kubelet import pod as pods
from hami_sandbox.kubelet.attempts import NOTHING, Histories
from hami_sandbox.kubelet.container_status import Waiting
from hami_sandbox.kubelet.node_document import ADDRESS
from hami_sandbox.kubelet.pod import Object


class End(msgspec.Struct, frozen=True):
    """Why kubelet itself ended a pod; empty where its containers simply came to their end."""

    reason: str = ""
    message: str = ""


class Sight(msgspec.Struct, frozen=True, kw_only=True):
    """What a status is made from, beside the pod."""

    found: Histories
    #: What keeps a container that is to be started from it, by its name.
    waiting: Mapping[str, Waiting]
    #: Nothing of it runs or will run.
    over: bool
    end: End = End()
    #: When kubelet first saw the pod.
    started_at: float
    #: The conditions as they were written last: one that has not changed keeps its date.
    before: Sequence[Object]
    now: float


def rejected(pod: Object, reason: str, message: str, now: float) -> Object:
    """Return the status of a pod that this node does not take."""
    return {
        "phase": "Failed",
        "reason": reason,
        "message": f"Pod was rejected: {message}",
        "startTime": pods.status(pod).get("startTime") or times.stamp_at(now),
    }


def status(pod: Object, sight: Sight) -> Object:
    found = sight.found
    initialized = decisions.initialized(pod, found)
    inits = [
        _shown(container, sight, init=not pods.is_sidecar(container), started=initialized)
        for container in pods.init_containers(pod)
    ]
    mains = [
        _shown(container, sight, init=False, started=initialized)
        for container in pods.containers(pod)
    ]
    mains.sort(key=lambda each: str(each["name"]))
    phase = phases.phase(pod, found, over=sight.over)
    if sight.over and sight.end.reason:
        phase = "Failed"
    made: Object = {
        "phase": phase,
        "startTime": times.stamp_at(sight.started_at),
        "hostIP": ADDRESS,
        "hostIPs": [{"ip": ADDRESS}],
        "podIP": ADDRESS,
        "podIPs": [{"ip": ADDRESS}],
        "containerStatuses": mains,
        "conditions": _conditions(pod, phase, initialized=initialized, sight=sight, shown=mains),
        "reason": sight.end.reason or None,
        "message": sight.end.message or None,
    }
    if inits:
        made["initContainerStatuses"] = inits
    return made


def _shown(container: Object, sight: Sight, *, init: bool, started: bool) -> Object:
    name = container["name"]
    history = sight.found.get(name, NOTHING)
    waiting = None if sight.over else sight.waiting.get(name)
    if waiting is None and not started and history.latest is None:
        waiting = Waiting("PodInitializing")
    return container_status.of(container, history, waiting=waiting, lost=sight.over, init=init)


def _conditions(
    pod: Object, phase: str, *, initialized: bool, sight: Sight, shown: list[Object]
) -> list[Object]:
    inits = [
        each["name"]
        for each in pods.init_containers(pod)
        if (attempt := sight.found.get(each["name"], NOTHING).latest) is None
        or (attempt.exit_code != 0 if attempt.exited else not pods.is_sidecar(each))
    ]
    unready = [each["name"] for each in shown if not each["ready"]]
    ready = _readiness(phase, unready)
    wanted = [
        {"type": "PodReadyToStartContainers", "status": "False" if sight.over else "True"},
        _initialized(phase, inits, initialized=initialized),
        {"type": "Ready", **ready},
        {"type": "ContainersReady", **ready},
        {"type": "PodScheduled", "status": "True"},
    ]
    before = {each.get("type"): each for each in sight.before}
    return [_dated(each, before.get(each["type"]), sight.now) for each in wanted]


def _initialized(phase: str, missing: list[str], *, initialized: bool) -> Object:
    told: Object = {"type": "Initialized"}
    if phase == "Succeeded":
        return told | {"status": "True", "reason": "PodCompleted"}
    if initialized:
        return told | {"status": "True"}
    return told | {
        "status": "False",
        "reason": "ContainersNotInitialized",
        "message": f"containers with incomplete status: [{' '.join(missing)}]",
    }


def _readiness(phase: str, unready: list[str]) -> Object:
    if phase == "Succeeded":
        return {"status": "False", "reason": "PodCompleted"}
    if phase == "Failed":
        return {"status": "False", "reason": "PodFailed"}
    if not unready:
        return {"status": "True"}
    return {
        "status": "False",
        "reason": "ContainersNotReady",
        "message": f"containers with unready status: [{' '.join(unready)}]",
    }


def _dated(condition: Object, before: Object | None, now: float) -> Object:
    since = times.stamp_at(now)
    if before is not None and before.get("status") == condition["status"]:
        since = before.get("lastTransitionTime") or since
    # Said to be nothing, because a patch leaves what it does not name.
    empty = {"reason": None, "message": None, "lastProbeTime": None}
    return {**empty, **condition, "lastTransitionTime": since}
