"""Write the newest status of each pod, and delete pods that ended.

No caller waits for it: a slow server never delays a start. A status that a newer one replaced
while a request was running is never sent.
"""

from __future__ import annotations

import asyncio
import logging

import msgspec

from hami.kube import errors, paths
from hami.kube.client import Client, PatchKind
from hami.kube.transport import Backoff
from hami.wire import codec
from hami_sandbox.kubelet import pod as pods
from hami_sandbox.kubelet.pod import Object

_log = logging.getLogger(__name__)

_LONGEST_WAIT_S = 5.0


class _Update(msgspec.Struct, frozen=True):
    pod: Object
    #: None: nothing to write.
    status: Object | None
    #: All its containers have ended and its deletion was requested.
    delete: bool


class StatusWriter:
    def __init__(self, client: Client) -> None:
        self._client = client
        self._updates: dict[str, _Update] = {}
        self._written: dict[str, Object] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}

    def put(self, pod: Object, status: Object) -> None:
        """Write this status of a pod."""
        self._queue(_Update(pod, status, delete=False))

    def finish(self, pod: Object, status: Object | None) -> None:
        """Write the last status of a pod, then delete it."""
        self._queue(_Update(pod, status, delete=True))

    def forget(self, uid: str) -> None:
        """Stop writing: the pod is deleted."""
        self._updates.pop(uid, None)
        self._written.pop(uid, None)
        if task := self._tasks.pop(uid, None):
            task.cancel()

    async def stop(self) -> None:
        """Wait a moment for running requests, then cancel them."""
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _queue(self, update: _Update) -> None:
        uid = pods.uid(update.pod)
        if (
            uid not in self._written
            and update.status is not None
            and _shows(update.pod, update.status)
        ):
            self._written[uid] = update.status  # from before a restart
        if update.status == self._written.get(uid) and not update.delete and uid not in self._tasks:
            return
        self._updates[uid] = update
        if uid not in self._tasks:
            self._tasks[uid] = asyncio.create_task(self._write(uid), name=f"status of {uid}")

    async def _write(self, uid: str) -> None:
        backoff = Backoff(first=0.2, longest=_LONGEST_WAIT_S)
        try:
            while (update := self._updates.get(uid)) is not None:
                try:
                    await self._send(uid, update)
                except (errors.NotFound, errors.Conflict):
                    self._updates.pop(uid, None)  # deleted, or another pod of that name
                except errors.KubeError as error:
                    _log.warning(
                        "cannot write a pod's status, retrying", extra=_about(update, error)
                    )
                    await asyncio.sleep(backoff.next(error.retry_after))
                else:
                    backoff.reset()
                    if self._updates.get(uid) is update:
                        del self._updates[uid]
        finally:
            if self._tasks.get(uid) is asyncio.current_task():
                del self._tasks[uid]

    async def _send(self, uid: str, update: _Update) -> None:
        path = paths.pods(pods.namespace(update.pod), pods.name(update.pod))
        if update.status is not None and update.status != self._written.get(uid):
            # With the UID: a new pod of this name is another one.
            body = codec.encode({"metadata": {"uid": uid}, "status": update.status})
            try:
                await self._client.patch(f"{path}/status", body, kind=PatchKind.STRATEGIC)
            except errors.Invalid as error:
                # A refused status is not retried; the pod's end must come nevertheless.
                _log.warning("API server refused a pod's status", extra=_about(update, error))
            self._written[uid] = update.status
        if update.delete:
            options = {
                "apiVersion": "v1",
                "kind": "DeleteOptions",
                "gracePeriodSeconds": 0,
                "preconditions": {"uid": uid},
            }
            await self._client.delete(path, codec.encode(options))


def _about(update: _Update, error: errors.KubeError) -> dict[str, str]:
    return {"pod": pods.full_name(update.pod), "error": str(error)}


def _shows(pod: Object, status: Object) -> bool:
    """Return whether the API server has this status already."""
    there = pods.status(pod)
    conditions = {each.get("type"): each for each in there.get("conditions") or ()}
    return all(
        all(_holds(conditions.get(each["type"]), each) for each in value)
        if key == "conditions"
        else there.get(key) == value
        for key, value in status.items()
    )


def _holds(there: Object | None, wanted: Object) -> bool:
    return there is not None and all(there.get(key) == value for key, value in wanted.items())
