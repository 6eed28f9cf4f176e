"""The status of one container, as kubelet writes it."""

from __future__ import annotations

import msgspec

from hami_sandbox import times
from hami_sandbox.kubelet.attempts import Attempt, History
from hami_sandbox.kubelet.pod import Object

#: Before the id of each container: the runtime that it is of, as its CRI socket says.
RUNTIME = "hami-sandbox"

_KILLED = 137
_LOST = "The container could not be located when the pod was terminated"


class Waiting(msgspec.Struct, frozen=True):
    """Why a container does not run yet, or not again."""

    reason: str
    message: str = ""

    def state(self) -> Object:
        told = {"reason": self.reason, "message": self.message}
        return {"waiting": {key: value for key, value in told.items() if value}}


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
        shown["state"] = {"running": {"startedAt": times.stamp_at(latest.started_at)}}
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
    told: Object = {
        "exitCode": attempt.exit_code,
        "reason": attempt.reason or ("Completed" if attempt.exit_code == 0 else "Error"),
        "containerID": container_id(attempt),
        "startedAt": times.stamp_at(attempt.started_at),
        "finishedAt": times.stamp_at(attempt.finished_at),
    }
    if attempt.message:
        told["message"] = attempt.message
    return {"terminated": told}
