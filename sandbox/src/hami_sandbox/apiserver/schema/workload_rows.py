"""Rows of deployments, replica sets, daemon sets and jobs in kubectl's tables."""

from __future__ import annotations

import datetime as dt
from typing import Any

from hami_sandbox.apiserver.refusals import Object
from hami_sandbox.apiserver.schema.cells import age, duration, joined, selector


def deployment(obj: Object, now: dt.datetime) -> list[Any]:
    spec, status = obj.get("spec") or {}, obj.get("status") or {}
    return [
        obj["metadata"]["name"],
        f"{status.get('readyReplicas', 0)}/{spec.get('replicas', 0)}",
        status.get("updatedReplicas", 0),
        status.get("availableReplicas", 0),
        age(obj["metadata"].get("creationTimestamp"), now),
        *_template(spec),
    ]


def replica_set(obj: Object, now: dt.datetime) -> list[Any]:
    spec, status = obj.get("spec") or {}, obj.get("status") or {}
    return [
        obj["metadata"]["name"],
        spec.get("replicas", 0),
        status.get("replicas", 0),
        status.get("readyReplicas", 0),
        age(obj["metadata"].get("creationTimestamp"), now),
        *_template(spec),
    ]


def daemon_set(obj: Object, now: dt.datetime) -> list[Any]:
    spec, status = obj.get("spec") or {}, obj.get("status") or {}
    pod = (spec.get("template") or {}).get("spec") or {}
    counts = ("desiredNumberScheduled", "currentNumberScheduled", "numberReady")
    return [
        obj["metadata"]["name"],
        *(status.get(each, 0) for each in counts),
        status.get("updatedNumberScheduled", 0),
        status.get("numberAvailable", 0),
        selector(pod.get("nodeSelector")),
        age(obj["metadata"].get("creationTimestamp"), now),
        *_template(spec),
    ]


def job(obj: Object, now: dt.datetime) -> list[Any]:
    spec, status = obj.get("spec") or {}, obj.get("status") or {}
    done = status.get("succeeded", 0)
    wanted = spec.get("completions")
    if wanted is None:
        parallelism = spec.get("parallelism", 0)
        completions = f"{done}/1 of {parallelism}" if parallelism > 1 else f"{done}/1"
    else:
        completions = f"{done}/{wanted}"
    return [
        obj["metadata"]["name"],
        _job_state(obj, status),
        completions,
        _job_duration(status, now),
        age(obj["metadata"].get("creationTimestamp"), now),
        *_template(spec),
    ]


def _job_state(obj: Object, status: Object) -> str:
    true = {
        each.get("type") for each in status.get("conditions") or () if each.get("status") == "True"
    }
    for condition, word in (
        ("Complete", "Complete"),
        ("Failed", "Failed"),
        ("Suspended", "Suspended"),
        ("FailureTarget", "FailureTarget"),
        ("SuccessCriteriaMet", "SuccessCriteriaMet"),
    ):
        if condition in true:
            return word
    return "Terminating" if obj["metadata"].get("deletionTimestamp") else "Running"


def _job_duration(status: Object, now: dt.datetime) -> str:
    start, end = status.get("startTime"), status.get("completionTime")
    if not start:
        return ""
    if not end:
        return age(start, now)
    span = dt.datetime.fromisoformat(end) - dt.datetime.fromisoformat(start)
    return duration(span.total_seconds())


def _template(spec: Object) -> tuple[str, str, str]:
    """Return the cells of the wide form: containers, images, selector."""
    containers = ((spec.get("template") or {}).get("spec") or {}).get("containers") or ()
    names = joined(each.get("name", "") for each in containers)
    images = joined(each.get("image", "") for each in containers)
    return (names, images, selector(spec.get("selector")))
