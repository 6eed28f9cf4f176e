"""Pods and owners as controllers read them; what controllers of owners share."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterable, Mapping

from hami.kube.events import EventRecorder
from hami_sandbox import api_objects
from hami_sandbox.api_objects import ENDED
from hami_sandbox.apiserver.kinds import Kind
from hami_sandbox.controllers.controller import (
    Api,
    Controller,
    Object,
    Watches,
    enqueue_itself,
    enqueue_owner,
    path,
)


def owner_reference(kind: Kind, owner: Object) -> Object:
    """Return the reference to an object's controller."""
    return {
        "apiVersion": kind.api_version,
        "kind": kind.kind,
        "name": owner["metadata"]["name"],
        "uid": owner["metadata"]["uid"],
        "controller": True,
        "blockOwnerDeletion": True,
    }


def controlled(objects: Iterable[Object], uid: str) -> list[Object]:
    """Return the objects that this owner controls."""
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
    given = template.get("metadata") or {}
    name: str = owner["metadata"]["name"]
    metadata: Object = {
        "generateName": f"{name}-",
        "ownerReferences": [owner_reference(kind, owner)],
    }
    for field in ("labels", "annotations", "finalizers"):
        if given.get(field):
            metadata[field] = given[field]
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
            since = condition.get("lastTransitionTime") or pod["metadata"]["creationTimestamp"]
            return api_objects.read(since)
    return None


def is_available(pod: Object, *, seconds: float, now: dt.datetime) -> bool:
    """Return whether a pod has been ready for so long."""
    since = ready_since(pod)
    return since is not None and since + dt.timedelta(seconds=seconds) <= now


def dispensable_first(pod: Object) -> tuple[bool, bool, bool, str]:
    """Sort key of pods to delete first: unplaced, not running, not ready, newest."""
    placed = bool(pod["spec"].get("nodeName"))
    created = pod["metadata"]["creationTimestamp"]
    # Texts sort upwards; the newest shall come first.
    age = "".join(chr(255 - ord(letter)) for letter in created)
    return placed, phase(pod) == "Running", ready_since(pod) is not None, age


#: Seconds to let several changes of what is owned come together.
_GATHER = 0.05


class OwnerController(Controller):
    """A controller of objects of one kind, `owner`, that have objects of another, `owned`."""

    owner: Kind
    owned: Kind

    def __init__(
        self,
        api: Api,
        watches: Watches,
        events: EventRecorder,
        *,
        now: Callable[[], dt.datetime] = api_objects.now,
    ) -> None:
        super().__init__()
        self._api = api
        self._events = events
        self._now = now
        watches.follow(self.owner, enqueue_itself(self.queue))
        watches.follow(self.owned, enqueue_owner(self.owner.kind, self.queue, _GATHER))

    async def _living(self, key: str) -> Object | None:
        """Read an owner; None if it is deleted or being deleted."""
        namespace, _, name = key.partition("/")
        found = await self._api.get(path(self.owner, namespace, name))
        return None if found is None or "deletionTimestamp" in found["metadata"] else found

    async def _owned_by(self, owner: Object, query: str) -> list[Object]:
        """Return the objects that an owner controls, among those that its labels select."""
        metadata = owner["metadata"]
        where = path(self.owned, metadata["namespace"])
        listed = await self._api.items(where, labelSelector=query)
        return controlled(listed, metadata["uid"])

    def _look_later(self, owner: Object, seconds: float) -> None:
        """Reconcile an object again after so many seconds."""
        metadata = owner["metadata"]
        self.queue.add_after(f"{metadata['namespace']}/{metadata['name']}", seconds)

    async def _write_status(self, owner: Object, status: Object) -> bool:
        """Write a status if it differs; return whether it did."""
        before = owner.get("status") or {}
        if all(before.get(key) == value for key, value in status.items()):
            return False
        metadata = owner["metadata"]
        where = path(self.owner, metadata["namespace"], metadata["name"], "status")
        await self._api.patch(where, {"status": status})
        return True

    def _record_event(self, owner: Object, type_: str, reason: str, message: str) -> None:
        metadata = owner["metadata"]
        self._events.record(
            namespace=metadata["namespace"],
            name=metadata["name"],
            uid=metadata["uid"],
            kind=self.owner.kind,
            type=type_,
            reason=reason,
            message=message,
        )
