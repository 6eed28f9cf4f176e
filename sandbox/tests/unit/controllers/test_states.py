"""States of pods and replica sets, and the conditions made of them."""

from __future__ import annotations

import datetime as dt

import pytest

from hami_sandbox.controllers import deployments, pod_states
from hami_sandbox.controllers.controller import Object, known

NOW = dt.datetime(2026, 1, 2, 3, 4, 5, tzinfo=dt.UTC)


def pod(phase: str = "Pending", *, ready: str = "", node: str = "", created: str = "04") -> Object:
    conditions = [{"type": "Ready", "status": "True", "lastTransitionTime": ready}] if ready else []
    return {
        "metadata": {"creationTimestamp": f"2026-01-02T03:{created}:00Z"},
        "spec": {"nodeName": node} if node else {},
        "status": {"phase": phase, "conditions": conditions},
    }


def test_a_pod_is_available_once_it_has_been_ready_for_long_enough() -> None:
    since = "2026-01-02T03:04:00Z"
    assert pod_states.is_available(pod(ready=since), seconds=5, now=NOW)
    assert not pod_states.is_available(pod(ready=since), seconds=6, now=NOW)
    assert not pod_states.is_available(pod(), seconds=0, now=NOW)


def test_pods_are_given_up_in_the_order_of_what_is_lost() -> None:
    since = "2026-01-02T03:04:00Z"
    serving_long = pod("Running", ready=since, node="n", created="01")
    serving = pod("Running", ready=since, node="n", created="02")
    starting = pod("Running", node="n")
    placed = pod(node="n")
    waiting = pod()
    given = [serving_long, starting, waiting, serving, placed]
    assert sorted(given, key=pod_states.dispensable_first) == [
        *(waiting, placed, starting, serving, serving_long)
    ]


def test_a_pod_of_a_template_belongs_to_its_owner() -> None:
    owner = {"metadata": {"name": "web", "uid": "u"}}
    template = {"metadata": {"labels": {"a": "1"}}, "spec": {"containers": []}}
    made = pod_states.from_template(template, known("apps", "replicasets"), owner, {"b": "2"})
    assert made["metadata"]["generateName"] == "web-"
    assert made["metadata"]["labels"] == {"a": "1", "b": "2"}
    assert template["metadata"] == {"labels": {"a": "1"}}
    assert pod_states.controlled([made], "u") == [made]
    assert pod_states.controlled([made], "other") == []


def deployment(replicas: int, status: Object | None = None) -> Object:
    return {
        "metadata": {"name": "web", "generation": 3},
        "spec": {"replicas": replicas, "progressDeadlineSeconds": 60},
        "status": status or {},
    }


def replica_set(replicas: int, available: int) -> Object:
    status = {"replicas": replicas, "readyReplicas": available, "availableReplicas": available}
    return {"metadata": {"name": "web-x"}, "spec": {"replicas": replicas}, "status": status}


def conditions(status: Object) -> dict[str, tuple[str, str]]:
    return {each["type"]: (each["status"], each["reason"]) for each in status["conditions"]}


def test_a_complete_rollout_says_so_and_waits_for_nothing() -> None:
    status, wait = deployments.new_status(deployment(2), replica_set(2, 2), [], now=NOW)
    assert conditions(status) == {
        "Available": ("True", "MinimumReplicasAvailable"),
        "Progressing": ("True", "NewReplicaSetAvailable"),
    }
    assert (status["updatedReplicas"], status["unavailableReplicas"]) == (2, None)
    assert status["observedGeneration"] == 3
    assert wait is None


def test_a_rollout_without_progress_runs_into_its_deadline() -> None:
    new, old = replica_set(1, 0), [replica_set(1, 1)]
    status, wait = deployments.new_status(deployment(2), new, old, now=NOW)
    assert conditions(status)["Progressing"] == ("True", "ReplicaSetUpdated")
    assert (status["replicas"], status["unavailableReplicas"], wait) == (2, 1, 60.0)
    later = NOW + dt.timedelta(seconds=59)
    again, wait = deployments.new_status(deployment(2, status), new, old, now=later)
    assert again == status
    assert wait == pytest.approx(1)
    later = NOW + dt.timedelta(seconds=61)
    failed, wait = deployments.new_status(deployment(2, again), new, old, now=later)
    assert conditions(failed)["Progressing"] == ("False", "ProgressDeadlineExceeded")
    assert wait is None


def test_the_same_template_has_the_same_hash_whatever_its_order() -> None:
    one = deployments.template_hash({"spec": {"a": 1, "b": 2}})
    assert one == deployments.template_hash({"spec": {"b": 2, "a": 1}})
    assert one != deployments.template_hash({"spec": {"a": 1, "b": 3}})
    assert len(one) == 10
