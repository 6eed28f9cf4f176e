"""Pods as their controllers see them: whose, alive, ready, for how long; and new ones."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Mapping

from hami_sandbox import times
from hami_sandbox.apiserver.kind import Kind
from hami_sandbox.controllers.api import Object
from hami_sandbox.pod_phases import ENDED


def owner_reference(kind: Kind, owner: Object) -> Object:
    """Return the reference of the one that looks after an object."""
    return {
        "apiVersion": kind.api_version,
        "kind": kind.kind,
        "name": owner["metadata"]["name"],
        "uid": owner["metadata"]["uid"],
        "controller": True,
        "blockOwnerDeletion": True,
    }


def controlled(objects: Iterable[Object], uid: str) -> list[Object]:
    """Return those that this owner looks after."""
    return [
        each
        for each in objects
        if any(
            owner["uid"] == uid and owner.get("controller")
            for owner in each["metadata"].get("ownerReferences") or ()
        )
    ]


def from_template(
    template: Object, kind: Kind, owner: Object, labels: Mapping[str, str] | None = None
) -> Object:
    """Return a new pod of an owner."""
    told = template.get("metadata") or {}
    name: str = owner["metadata"]["name"]
    metadata: Object = {
        "generateName": f"{name}-",
        "ownerReferences": [owner_reference(kind, owner)],
    }
    for field in ("labels", "annotations", "finalizers"):
        if told.get(field):
            metadata[field] = told[field]
    if labels:
        metadata["labels"] = {**(metadata.get("labels") or {}), **labels}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": template["spec"]}


def phase(pod: Object) -> str:
    return str((pod.get("status") or {}).get("phase") or "Pending")


def is_deleting(pod: Object) -> bool:
    return "deletionTimestamp" in pod["metadata"]


def is_active(pod: Object) -> bool:
    return phase(pod) not in ENDED and not is_deleting(pod)


def ready_since(pod: Object) -> dt.datetime | None:
    """Return since when a pod has been ready; None if it is not."""
    for condition in (pod.get("status") or {}).get("conditions") or ():
        if condition["type"] == "Ready" and condition["status"] == "True":
            told = condition.get("lastTransitionTime") or pod["metadata"]["creationTimestamp"]
            return times.read(told)
    return None


def is_available(pod: Object, *, seconds: float, now: dt.datetime) -> bool:
    """Return whether a pod has been ready for so long."""
    since = ready_since(pod)
    return since is not None and since + dt.timedelta(seconds=seconds) <= now


def dispensable_first(pod: Object) -> tuple[bool, bool, bool, str]:
    """Sort pods by how little is lost with them: unplaced, not running, not ready, the newest."""
    placed = bool(pod["spec"].get("nodeName"))
    created = pod["metadata"]["creationTimestamp"]
    # Texts sort upwards; the newest shall come first.
    age = "".join(chr(255 - ord(letter)) for letter in created)
    return placed, phase(pod) == "Running", ready_since(pod) is not None, age
