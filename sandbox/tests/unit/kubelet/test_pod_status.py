"""A pod's status, as kubelet writes it."""

from __future__ import annotations

from typing import Any

import pytest

from hami_sandbox.kubelet import statuses
from hami_sandbox.kubelet.attempts import Attempt
from hami_sandbox.kubelet.statuses import End, Sight, Waiting
from sandbox.tests.unit.kubelet.pods import (
    container,
    created,
    exited,
    histories,
    pod,
    running,
    sidecar,
)

Object = dict[str, Any]


def status(
    made: Object,
    *attempts: Attempt,
    waiting: dict[str, Waiting] | None = None,
    over: bool = False,
    end: End | None = None,
    before: tuple[Object, ...] = (),
) -> Object:
    sight = Sight(
        found=histories(*attempts),
        waiting=waiting or {},
        over=over,
        end=end or End(),
        started_at=990.0,
        before=before,
        now=1020.0,
    )
    return statuses.status(made, sight)


def conditions(shown: Object) -> dict[str, str]:
    return {each["type"]: each["status"] for each in shown["conditions"]}


def test_a_running_pod() -> None:
    shown = status(pod(), exited(code=3), running(attempt=1))
    assert shown["phase"] == "Running"
    assert shown["startTime"] == "1970-01-01T00:16:30Z"
    assert shown["podIP"] == "127.0.0.1"
    assert conditions(shown) == {
        "PodReadyToStartContainers": "True",
        "Initialized": "True",
        "Ready": "True",
        "ContainersReady": "True",
        "PodScheduled": "True",
    }
    (main,) = shown["containerStatuses"]
    assert main["state"] == {"running": {"startedAt": "1970-01-01T00:16:40Z"}}
    assert main["lastState"]["terminated"] == {
        "exitCode": 3,
        "reason": "Error",
        "containerID": "hami-sandbox://main-0",
        "startedAt": "1970-01-01T00:16:40Z",
        "finishedAt": "1970-01-01T00:16:50Z",
    }
    assert (main["ready"], main["started"], main["restartCount"]) == (True, True, 1)
    assert main["containerID"] == "hami-sandbox://main-1"


def test_a_pod_whose_init_containers_run() -> None:
    made = pod(init=(sidecar("proxy"), container("first")))
    shown = status(made, running("proxy"), running("first"))
    assert shown["phase"] == "Pending"
    proxy, first = shown["initContainerStatuses"]
    assert (proxy["ready"], first["ready"]) == (True, False)
    assert shown["containerStatuses"][0]["state"] == {"waiting": {"reason": "PodInitializing"}}
    told = next(each for each in shown["conditions"] if each["type"] == "Initialized")
    assert told["reason"] == "ContainersNotInitialized"
    assert told["message"] == "containers with incomplete status: [first]"
    assert conditions(shown)["Ready"] == "False"


def test_an_init_container_that_ended_well_is_ready() -> None:
    shown = status(pod(init=(container("first"),)), exited("first"), running())
    assert shown["initContainerStatuses"][0]["ready"] is True
    assert shown["phase"] == "Running"


def test_a_crashed_container_waits_and_tells_of_its_last_run() -> None:
    waiting = {"main": Waiting("CrashLoopBackOff", "back-off 10s")}
    shown = status(pod(), exited(code=1, attempt=2), waiting=waiting)
    (main,) = shown["containerStatuses"]
    assert shown["phase"] == "Running"
    assert main["state"] == {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off 10s"}}
    assert main["lastState"]["terminated"]["exitCode"] == 1
    assert main["restartCount"] == 2
    told = next(each for each in shown["conditions"] if each["type"] == "ContainersReady")
    assert told["message"] == "containers with unready status: [main]"


def test_a_container_that_cannot_be_made_keeps_the_pod_pending() -> None:
    waiting = {"b": Waiting("CreateContainerError", "failed to inject CDI devices")}
    shown = status(pod("p", container("b"), container("a")), running("a"), waiting=waiting)
    assert shown["phase"] == "Pending"
    assert [each["name"] for each in shown["containerStatuses"]] == ["a", "b"]
    assert shown["containerStatuses"][1]["state"]["waiting"]["reason"] == "CreateContainerError"
    assert shown["containerStatuses"][1]["imageID"] == ""


def test_made_but_not_started_is_not_running() -> None:
    shown = status(pod(), created())
    assert shown["phase"] == "Pending"
    assert shown["containerStatuses"][0]["state"] == {"waiting": {"reason": "ContainerCreating"}}


@pytest.mark.parametrize(("codes", "phase"), [((0, 0), "Succeeded"), ((0, 1), "Failed")])
def test_a_pod_that_is_over(codes: tuple[int, int], phase: str) -> None:
    made = pod("p", container("a"), container("b"), restartPolicy="Never")
    shown = status(made, exited("a", codes[0]), exited("b", codes[1]), over=True)
    assert shown["phase"] == phase
    assert conditions(shown)["Ready"] == "False"
    reasons = {each["type"]: each["reason"] for each in shown["conditions"]}
    assert reasons["Ready"] == ("PodCompleted" if phase == "Succeeded" else "PodFailed")


def test_a_pod_that_was_ended_before_it_ran_has_failed() -> None:
    shown = status(pod(), over=True)
    assert shown["phase"] == "Failed"
    told = shown["containerStatuses"][0]["state"]["terminated"]
    assert (told["exitCode"], told["reason"]) == (137, "ContainerStatusUnknown")


def test_kubelet_says_why_it_ended_a_pod() -> None:
    end = End("DeadlineExceeded", "too long")
    shown = status(pod(), running(), end=end)
    assert (shown["phase"], shown["reason"]) == ("Running", "DeadlineExceeded")
    shown = status(pod(), exited(code=0), end=end, over=True)
    assert (shown["phase"], shown["message"]) == ("Failed", "too long")


def test_a_condition_keeps_its_date_until_it_changes() -> None:
    before = tuple(
        {"type": kind, "status": state, "lastTransitionTime": "1970-01-01T00:00:01Z"}
        for kind, state in (("Ready", "False"), ("Initialized", "True"))
    )
    shown = status(pod(), running(), before=before)
    dates = {each["type"]: each["lastTransitionTime"] for each in shown["conditions"]}
    assert dates["Initialized"] == "1970-01-01T00:00:01Z"
    assert dates["Ready"] == "1970-01-01T00:17:00Z"


def test_a_rejected_pod() -> None:
    shown = statuses.rejected(pod(), "UnexpectedAdmissionError", "Allocate failed", 1000.0)
    assert shown == {
        "phase": "Failed",
        "reason": "UnexpectedAdmissionError",
        "message": "Pod was rejected: Allocate failed",
        "startTime": "1970-01-01T00:16:40Z",
    }
