"""What controllers of owners share: they follow what they own, tell of it and write a status."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable

from hami.kube.events import EventRecorder
from hami_sandbox import times
from hami_sandbox.apiserver.kind import Kind
from hami_sandbox.controllers import pod_states
from hami_sandbox.controllers.api import Api, Object, path
from hami_sandbox.controllers.controller import Controller, Watches, enqueue_itself, enqueue_owner

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
        now: Callable[[], dt.datetime] = times.now,
    ) -> None:
        super().__init__()
        self._api = api
        self._events = events
        self._now = now
        watches.follow(self.owner, enqueue_itself(self.queue))
        watches.follow(self.owned, enqueue_owner(self.owner.kind, self.queue, _GATHER))

    async def _living(self, key: str) -> Object | None:
        """Read an owner; None if it is gone, or on its way."""
        namespace, _, name = key.partition("/")
        found = await self._api.get(path(self.owner, namespace, name))
        return None if found is None or "deletionTimestamp" in found["metadata"] else found

    async def _owned_by(self, owner: Object, query: str) -> list[Object]:
        """Return what an owner controls, out of what its labels select."""
        metadata = owner["metadata"]
        where = path(self.owned, metadata["namespace"])
        listed = await self._api.items(where, labelSelector=query)
        return pod_states.controlled(listed, metadata["uid"])

    def _look_later(self, owner: Object, seconds: float) -> None:
        """Have an object looked at when time alone may have changed something."""
        metadata = owner["metadata"]
        self.queue.add_after(f"{metadata['namespace']}/{metadata['name']}", seconds)

    async def _write_status(self, owner: Object, status: Object) -> bool:
        """Write what of a status is not so yet; return whether there was any."""
        before = owner.get("status") or {}
        if all(before.get(key) == value for key, value in status.items()):
            return False
        metadata = owner["metadata"]
        where = path(self.owner, metadata["namespace"], metadata["name"], "status")
        await self._api.patch(where, {"status": status})
        return True

    def _tell(self, owner: Object, type_: str, reason: str, message: str) -> None:
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
