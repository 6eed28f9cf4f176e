"""Statuses of pods and containers, as kubelet writes them. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from hami_sandbox import api_objects
from hami_sandbox.kubelet import decisions
from hami_sandbox.kubelet import pod as pods
from hami_sandbox.kubelet.attempts import NOTHING, Attempt, Histories, History, latest
from hami_sandbox.kubelet.node_document import ADDRESS
from hami_sandbox.kubelet.pod import Object
from hami_sandbox.runtime.spec import Phase

#: The runtime's name before each container's id, as in its CRI socket.
RUNTIME = "hami-sandbox"

_KILLED = 137
_LOST = "The container could not be located when the pod was terminated"


class Waiting(msgspec.Struct, frozen=True):
    """Why a container does not run yet, or not again."""

    reason: str
    message: str = ""

    def state(self) -> Object:
        fields = {"reason": self.reason, "message": self.message}
        return {"waiting": {key: value for key, value in fields.items() if value}}


def container_id(attempt: Attempt) -> str:
    return f"{RUNTIME}://{attempt.id}"


def of(
    container: Object,
    history: History,
    *,
    waiting: Waiting | None,
    lost: bool,
    init: bool,
) -> Object:
    """Return the status.

    `waiting`: it is to be started, and this keeps it from that. `lost`: the pod is over, so
    one that never ran will not run any more. `init`: it is ready when it has ended well.
    """
    latest = history.latest
    shown: Object = {
        "name": container["name"],
        "image": container.get("image") or "",
        "imageID": "" if latest is None else f"sandbox/{container.get('image') or ''}",
        "restartCount": latest.attempt if latest is not None else 0,
        "ready": False,
        "started": False,
        "state": {},
        "lastState": {},
    }
    if latest is not None:
        shown["containerID"] = container_id(latest)
    if latest is not None and latest.running:
        shown["state"] = {"running": {"startedAt": api_objects.stamp_at(latest.started_at)}}
        shown["lastState"] = _last(history.previous)
        shown["ready"] = not init
        shown["started"] = True
    elif latest is not None and latest.exited and waiting is None:
        shown["state"] = _terminated(latest)
        shown["lastState"] = _last(history.previous)
        shown["ready"] = init and latest.exit_code == 0
    elif waiting is None and lost:
        shown["state"] = {
            "terminated": {
                "exitCode": _KILLED,
                "reason": "ContainerStatusUnknown",
                "message": _LOST,
            }
        }
    else:
        shown["state"] = (waiting or Waiting("ContainerCreating")).state()
        ended = latest if latest is not None and latest.exited else history.previous
        shown["lastState"] = _last(ended)
    return shown


def _last(attempt: Attempt | None) -> Object:
    return {} if attempt is None else _terminated(attempt)


def _terminated(attempt: Attempt) -> Object:
    state: Object = {
        "exitCode": attempt.exit_code,
        "reason": attempt.reason or ("Completed" if attempt.exit_code == 0 else "Error"),
        "containerID": container_id(attempt),
        "startedAt": api_objects.stamp_at(attempt.started_at),
        "finishedAt": api_objects.stamp_at(attempt.finished_at),
    }
    if attempt.message:
        state["message"] = attempt.message
    return {"terminated": state}


def pod_phase(pod: Object, found: Histories, *, over: bool) -> str:
    """Return the phase; `over`: nothing of the pod runs or will run."""
    mains = [latest(found, container["name"]) for container in pods.containers(pod)]
    if over:
        good = all(each is not None and each.exited and each.exit_code == 0 for each in mains)
        return "Succeeded" if good and mains else "Failed"
    if not decisions.initialized(pod, found):
        return "Pending"
    made = [each for each in mains if each is not None and each.phase is not Phase.CREATED]
    # As kubelet has it: one that has not been made yet holds the whole pod back.
    return "Running" if made and len(made) == len(mains) else "Pending"


class End(msgspec.Struct, frozen=True):
    """Why kubelet itself ended a pod; empty where its containers simply came to their end."""

    reason: str = ""
    message: str = ""


class Sight(msgspec.Struct, frozen=True, kw_only=True):
    """The inputs of a status, beside the pod."""

    found: Histories
    #: What keeps a container that is to be started from it, by its name.
    waiting: Mapping[str, Waiting]
    #: No container runs or will run.
    over: bool
    end: End = End()
    #: When kubelet first saw the pod.
    started_at: float
    #: The conditions as they were written last: one that has not changed keeps its date.
    before: Sequence[Object]
    now: float


def rejected(pod: Object, reason: str, message: str, now: float) -> Object:
    """Return the status of a pod that this node rejects."""
    return {
        "phase": "Failed",
        "reason": reason,
        "message": f"Pod was rejected: {message}",
        "startTime": pods.status(pod).get("startTime") or api_objects.stamp_at(now),
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
    phase = pod_phase(pod, found, over=sight.over)
    if sight.over and sight.end.reason:
        phase = "Failed"
    made: Object = {
        "phase": phase,
        "startTime": api_objects.stamp_at(sight.started_at),
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
    return of(container, history, waiting=waiting, lost=sight.over, init=init)


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
    condition: Object = {"type": "Initialized"}
    if phase == "Succeeded":
        return condition | {"status": "True", "reason": "PodCompleted"}
    if initialized:
        return condition | {"status": "True"}
    return condition | {
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
    since = api_objects.stamp_at(now)
    if before is not None and before.get("status") == condition["status"]:
        since = before.get("lastTransitionTime") or since
    # Explicit nulls, because a patch keeps what it does not name.
    empty = {"reason": None, "message": None, "lastProbeTime": None}
    return {**empty, **condition, "lastTransitionTime": since}
